"""Small networks of our own, SHOT's, the original residual networks, and input normalisation inside a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tta_cattan.util.upstream import import_torchvision

BOTTLENECK = 256


class SmallCNN(nn.Module):
    """For 28x28 grey images: two 5x5 convolutions with batch normalisation and pooling, a 1,024-d feature."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 5, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(),
        )  # fmt: skip
        self.fc = nn.Linear(1024, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


class FeatureMLP(nn.Module):
    """For features of a frozen encoder: a linear layer with batch normalisation and ReLU, a linear classifier."""

    def __init__(self, num_classes: int, in_features: int = 768, width: int = 512) -> None:
        super().__init__()
        self.in_features = in_features
        self.features = nn.Identity()  # a name for the encoder's features, where CATTAn aligns
        # No bias: batch normalisation subtracts it.
        self.layer = nn.Sequential(nn.Linear(in_features, width, bias=False), nn.BatchNorm1d(width), nn.ReLU())
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of feature vectors (n x in_features)."""
        return self.fc(self.layer(self.features(x)))


class ShotNetwork(nn.Module):
    """SHOT's: ``backbone -> Linear(D, 256) -> BatchNorm1d -> weight-normalised Linear``, with its initial weights."""

    def __init__(self, backbone: nn.Module, dim: int, num_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.bottleneck = nn.Linear(dim, BOTTLENECK)
        self.bn = nn.BatchNorm1d(BOTTLENECK)
        fc = nn.Linear(BOTTLENECK, num_classes)
        for linear in (self.bottleneck, fc):
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)
        nn.init.normal_(self.bn.weight, 1.0, 0.02)
        self.fc = weight_norm(fc)
        self.removed_head = ""  # the layer of a backbone's checkpoint that is not used here

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.bn(self.bottleneck(self.backbone(x))))

    def get_classifier(self) -> nn.Module:
        """Return the classifier, under timm's name for this method: the backbone's own is not the last layer."""
        return self.fc


def shot_head(num_classes: int, in_features: int) -> ShotNetwork:
    """Return SHOT's bottleneck and classifier for features of a frozen backbone."""
    return ShotNetwork(nn.Identity(), in_features, num_classes)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation around a shortcut (1x1 where the shape changes)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class SmallResNet(nn.Module):
    """Strided stem, three residual blocks that each halve the resolution, global average; quick on a CPU."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(ResidualBlock(8, 8, 2), ResidualBlock(8, 32, 2), ResidualBlock(32, 64, 2))
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = self.blocks(F.relu(self.bn(self.conv(x)))).mean((2, 3))
        return self.fc(features)


class CifarBlock(nn.Module):
    """Two 3x3 convolutions; the shortcut subsamples by 2 and pads the new channels with zeros (option A)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride, self.padding = stride, (channels - channels_in) // 2

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(out + F.pad(shortcut, (0, 0, 0, 0, self.padding, self.padding)))


class CifarResNet(nn.Module):
    """He et al.'s network for CIFAR: ``6n + 2`` layers in three stages of 16, 32 and 64 channels; a 64-d feature."""

    def __init__(self, depth: int, num_classes: int = 10) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._stage(16, 16, blocks, 1)
        self.layer2 = self._stage(16, 32, blocks, 2)
        self.layer3 = self._stage(32, 64, blocks, 2)
        self.linear = nn.Linear(64, num_classes)

    @staticmethod
    def _stage(channels_in: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
        rest = [CifarBlock(channels, channels, 1) for _ in range(blocks - 1)]
        return nn.Sequential(CifarBlock(channels_in, channels, stride), *rest)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of normalised images."""
        out = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(out.mean((2, 3)))


def resnet50_v1(num_classes: int = 1000) -> nn.Module:
    """Return the ResNet-50 of Keras and Caffe: the stride on each stage's first 1x1 convolution, ``eps = 1e-3``.

    Note: torchvision's own ("v1.5") strides on the 3x3 convolution; keys and shapes are the same, the function is not.
    """
    model = import_torchvision("torchvision.models").resnet50(weights=None, num_classes=num_classes)
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
    return model


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normalize(nn.Module):
    """``(x - mean) / std`` per channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        # Not persistent: checkpoints of the bare model do not have them.
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def with_normalization(model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> nn.Sequential:
    """Return ``Sequential(normalise, model)``, the form that RobustBench's models have."""
    return nn.Sequential(OrderedDict(normalize=Normalize(mean, std), model=model))


def inner_network(model: nn.Module) -> nn.Module:
    """Return the network inside ``Sequential(normalize, model)``: checkpoints are of the bare network."""
    return model.model if isinstance(model, nn.Sequential) and hasattr(model, "normalize") else model
