"""Architectures of our own: some are trained on a benchmark's source data, the others' weights come in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from tta_cattan.bench.models.checkpoints import load_weights
from tta_cattan.bench.models.cifar_resnet import CifarResNet
from tta_cattan.bench.models.feature_mlp import FeatureMLP
from tta_cattan.bench.models.input_normalization import IMAGENET_MEAN, IMAGENET_STD, inner_network, with_normalization
from tta_cattan.bench.models.pointnet import PointNet
from tta_cattan.bench.models.resnet_v1 import resnet50_v1
from tta_cattan.bench.models.shot_network import SHOT_PREFIX, init_backbone, shot_network
from tta_cattan.bench.models.small_cnn import SmallCNN
from tta_cattan.bench.models.small_resnet import SmallResNet
from tta_cattan.util.errors import UserError
from tta_cattan.util.registry import Registry
from tta_cattan.util.upstream import import_robustbench


@dataclass(frozen=True)
class Architecture:
    """How a network is built, what its inputs are normalised by, and how it comes to its weights.

    ``keys`` are those of the config's MODEL node that the builder takes, as lower-case arguments.
    """

    build: Callable[..., nn.Module]
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    trained_here: bool = False  # on the spot, wherever it is asked for: it takes a minute
    trained_apart: bool = False  # by `tta-cattan train-source` or `pairs`: it may take hours
    init: Callable[[nn.Module, str], None] | None = None  # how weights of 'pretrained' or of a file get into it
    keys: tuple[str, ...] = ()

    def options(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the config's MODEL node says about the network."""
        return {key.lower(): node[key] for key in self.keys}

    def __call__(self, num_classes: int, node: Mapping[str, Any] | None = None) -> nn.Module:
        """Return the network for images in [0, 1] (or features, or points), with random weights."""
        model = self.build(num_classes, **self.options(node or {}))
        return with_normalization(model, self.mean, self.std) if self.mean else model

    def initialise(self, model: nn.Module, init: str) -> None:
        """Give a fresh network the first weights that ``SOURCE.INIT`` names."""
        if init == "random":
            return
        if not init:
            raise UserError(
                "SOURCE.INIT is empty: say where the first weights come from: a file, 'pretrained' (torchvision's or "
                "timm's, downloaded where they are not cached), or 'random'"
            )
        if self.init is not None:
            self.init(model, init)
        elif init == "pretrained":
            raise UserError("SOURCE.INIT = 'pretrained': this network has no published weights; use 'random' or a file")
        else:
            load_weights(inner_network(model), init)


def _robustbench_resnet18(num_classes: int) -> nn.Module:
    """Return RobustBench's CIFAR ResNet-18, the class of the checkpoint that ships with pyautoattack."""
    resnet = import_robustbench("robustbench.model_zoo.architectures.resnet")
    return resnet.ResNet(resnet.BasicBlock, [2, 2, 2, 2], num_classes)


# Caffe's preprocessing: RGB in 0..255, the mean subtracted, no division.
_CAFFE_MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)
_CAFFE_STD = (1 / 255,) * 3

ARCHITECTURES: Registry[Architecture] = Registry("model")
for _name, _architecture in {
    "small_resnet": Architecture(SmallResNet, trained_here=True),
    "small_cnn": Architecture(SmallCNN, trained_here=True),
    "pointnet": Architecture(PointNet, trained_here=True),
    "feature_mlp": Architecture(FeatureMLP, trained_here=True, keys=("IN_FEATURES", "WIDTH")),
    **{
        f"cifar_resnet{n}": Architecture(partial(CifarResNet, n), IMAGENET_MEAN, IMAGENET_STD) for n in (20, 32, 44, 56)
    },
    "cifar_resnet18": Architecture(_robustbench_resnet18),
    "resnet50_v1": Architecture(resnet50_v1, _CAFFE_MEAN, _CAFFE_STD),
}.items():
    ARCHITECTURES.register(_name)(_architecture)


def find_architecture(name: str) -> Architecture | None:
    """Return the architecture of that name, ``shot/<backbone>`` included, or None where it is not one of ours."""
    if name.startswith(SHOT_PREFIX):
        backbone = name.removeprefix(SHOT_PREFIX)
        own = ARCHITECTURES.get(backbone) if backbone in ARCHITECTURES else None
        return Architecture(
            partial(shot_network, backbone, own), trained_apart=True, init=partial(init_backbone, backbone)
        )
    return ARCHITECTURES.get(name) if name in ARCHITECTURES else None
