"""The original ResNet-50, as Keras and Caffe have it."""

from __future__ import annotations

from torch import nn

from tta_cattan.util.upstream import import_torchvision


def resnet50_v1(num_classes: int = 1000) -> nn.Module:
    """Return torchvision's ResNet-50 with the stride on each stage's first 1x1 convolution and ``eps = 1e-3``.

    Note: torchvision's own ("v1.5") strides on the 3x3 convolution; keys and shapes are the same, the function is not.
    """
    model = import_torchvision("torchvision.models").resnet50(weights=None, num_classes=num_classes)
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
    return model
