"""Source models by name: our architectures, torchvision's, timm's and RobustBench's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tta_cattan.bench.models.checkpoints import load_weights
from tta_cattan.bench.models.libraries import (
    check_library_name,
    has_library_name,
    is_library_name,
    load_from_library,
    load_from_robustbench,
    robustbench_names,
    untrained_of_robustbench,
)
from tta_cattan.bench.models.networks import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CifarResNet,
    FeatureMLP,
    SmallCNN,
    SmallResNet,
    inner_network,
    resnet50_v1,
    with_normalization,
)
from tta_cattan.bench.models.pointnet import PlainPointNet, PointNet
from tta_cattan.bench.models.shot_network import SHOT_PREFIX, init_backbone, shot_head, shot_network
from tta_cattan.util.errors import UserError, first_line, nearest
from tta_cattan.util.files import sha256_tensors
from tta_cattan.util.registry import Registry
from tta_cattan.util.upstream import import_robustbench

if TYPE_CHECKING:
    from yacs.config import CfgNode


@dataclass(frozen=True)
class Architecture:
    """A network of ours: how it is built and initialised, and the normalisation of its inputs.

    ``keys`` of the config's MODEL node are passed to the builder, in lower case.
    """

    build: Callable[..., nn.Module]
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    trained_here: bool = False  # on source data, on the spot: it takes a minute
    trained_apart: bool = False  # on source data, by a command of its own: it may take hours
    init: Callable[[nn.Module, str], None] | None = None  # loads weights: 'pretrained', or a file's
    keys: tuple[str, ...] = ()

    def options(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Return the builder's options from the config's MODEL node."""
        return {key.lower(): node[key] for key in self.keys}

    def __call__(self, num_classes: int, node: Mapping[str, Any] | None = None) -> nn.Module:
        """Return the network for images in [0, 1] (or features, or points), with random weights."""
        model = self.build(num_classes, **self.options(node or {}))
        return with_normalization(model, self.mean, self.std) if self.mean else model

    def initialise(self, model: nn.Module, init: str) -> None:
        """Load the initial weights that ``SOURCE.INIT`` names."""
        if init == "random":
            return
        if not init:
            raise UserError(
                "SOURCE.INIT is empty: name the initial weights: a file, 'pretrained' (torchvision's or "
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
    "plain_pointnet": Architecture(PlainPointNet, trained_here=True),
    "feature_mlp": Architecture(FeatureMLP, trained_here=True, keys=("IN_FEATURES", "WIDTH")),
    "shot_head": Architecture(shot_head, trained_here=True, keys=("IN_FEATURES",)),
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


@dataclass(frozen=True)
class LoadedModel:
    """A source model, where its weights came from, and their hash."""

    model: nn.Module
    origin: str
    sha256: str

    @classmethod
    def of(cls, model: nn.Module, origin: str) -> LoadedModel:
        """Freeze ``model`` for evaluation and hash its weights."""
        model.eval().requires_grad_(False)
        return cls(model, origin, sha256_tensors(model.state_dict()))


def resolve_device(name: str) -> torch.device:
    """Return the device that ``DEVICE`` names; "auto" is CUDA, then MPS, then the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"DEVICE = {name!r} cannot be used here ({first_line(error)}): use 'auto' or 'cpu'") from error


def load_model(cfg: CfgNode, num_classes: int, family: str | None = None) -> LoadedModel:
    """Return the model that ``MODEL.ARCH`` names, for images in [0, 1].

    ``torchvision/NAME`` and ``timm/NAME`` come from those libraries; other names are our architectures or, for a
    ``family`` (cifar10, cifar100, imagenet), RobustBench's models. ``MODEL.CKPT_PATH`` replaces the weights.
    """
    check_arch(cfg.MODEL.ARCH, family)
    arch, path = cfg.MODEL.ARCH, cfg.MODEL.CKPT_PATH
    architecture = find_architecture(arch)
    if is_library_name(arch):
        library, _, name = arch.partition("/")
        model = load_from_library(arch, num_classes, pretrained=not path)
        origin = path or f"the weights that {library} has for {name}"
    elif architecture is not None:
        if not path:
            raise UserError(f"MODEL.ARCH = {arch!r} comes without weights: set MODEL.CKPT_PATH to a checkpoint of it")
        model, origin = architecture(num_classes, cfg.MODEL), path
    else:
        model, origin = load_from_robustbench(arch, family, cfg.CKPT_DIR, path)
    if path:
        load_weights(inner_network(model), path)
    return LoadedModel.of(model.to(resolve_device(cfg.DEVICE)), str(origin))


def untrained_model(cfg: CfgNode, num_classes: int, family: str | None = None) -> nn.Module | None:
    """Return the model that ``MODEL.ARCH`` names with random weights; None where RobustBench cannot build it so."""
    if is_library_name(cfg.MODEL.ARCH):
        return load_from_library(cfg.MODEL.ARCH, num_classes, pretrained=False)
    architecture = find_architecture(cfg.MODEL.ARCH)
    return (
        untrained_of_robustbench(cfg.MODEL.ARCH, family) if not architecture else architecture(num_classes, cfg.MODEL)
    )


def check_arch(arch: str, family: str | None) -> None:
    """Refuse an unknown name, before anything is loaded."""
    if is_library_name(arch):
        check_library_name(arch)
        return
    if arch.startswith(SHOT_PREFIX):
        check_arch(arch.removeprefix(SHOT_PREFIX), None)
        return
    if arch in ARCHITECTURES:
        return
    names = [*ARCHITECTURES.registered_names(), *robustbench_names(family)]
    if arch not in names:
        for library in ("torchvision", "timm"):  # before the nearest name: resnet50 is not our resnet50_v1
            if has_library_name(f"{library}/{arch}"):
                other = "; resnet50_v1 is Caffe's, with other strides and pre-processing" if arch == "resnet50" else ""
                raise UserError(f"MODEL.ARCH = {arch!r}: say whose it is, {library}/{arch}{other}")
        raise UserError(
            f"MODEL.ARCH = {arch!r} is not known.{nearest(arch, names)} Known: torchvision/NAME, timm/NAME, "
            f"{', '.join(names[:12])}{', ...' if len(names) > 12 else ''} (tta-cattan --list)"
        )
