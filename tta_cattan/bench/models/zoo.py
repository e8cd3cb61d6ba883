"""Source models by name: our architectures, torchvision's, timm's and RobustBench's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import nn
from yacs.config import CfgNode

from tta_cattan.bench.models.checkpoints import load_weights
from tta_cattan.bench.models.networks import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CifarResNet,
    FeatureMLP,
    ShotNetwork,
    SmallCNN,
    SmallResNet,
    inner_network,
    resnet50_v1,
    shot_head,
    with_normalization,
)
from tta_cattan.bench.models.pointnet import PlainPointNet, PointNet
from tta_cattan.bench.models.robustbench import load_from_robustbench, robustbench_names, untrained_of_robustbench
from tta_cattan.network.layers import find_classifier, replace_module
from tta_cattan.util.errors import UserError, first_line, nearest
from tta_cattan.util.files import sha256_tensors
from tta_cattan.util.registry import Registry
from tta_cattan.util.upstream import import_torchvision

logger = logging.getLogger(__name__)

LIBRARIES = ("torchvision", "timm")
SHOT_PREFIX = "shot/"


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
    "resnet50_v1": Architecture(resnet50_v1, _CAFFE_MEAN, _CAFFE_STD),
}.items():
    ARCHITECTURES.register(_name)(_architecture)


def find_architecture(name: str) -> Architecture | None:
    """Return the architecture of that name, ``shot/<backbone>`` included, or None if it is not one of ours."""
    if name.startswith(SHOT_PREFIX):
        backbone = name.removeprefix(SHOT_PREFIX)
        return Architecture(partial(shot_network, backbone), trained_apart=True, init=partial(init_backbone, backbone))
    return ARCHITECTURES.get(name) if name in ARCHITECTURES else None


def shot_network(backbone: str, num_classes: int) -> ShotNetwork:
    """Return SHOT's network, with random weights, on a backbone of torchvision or timm, or on one of ours."""
    own = ARCHITECTURES.get(backbone) if backbone in ARCHITECTURES else None
    whole = load_from_library(backbone, None, pretrained=False) if own is None else own(num_classes)
    head, dim = remove_head(whole)
    network = ShotNetwork(whole, dim, num_classes)
    network.removed_head = head
    return network


def init_backbone(arch: str, model: ShotNetwork, init: str) -> None:
    """Load the backbone's weights: 'pretrained' (the library's) or those of a file."""
    if init != "pretrained":
        load_weights(inner_network(model.backbone), init, ignored=(f"{model.removed_head}.",))
        return
    if not is_library_name(arch):
        raise UserError(f"SOURCE.INIT = 'pretrained': {arch} has no published weights; use 'random' or a file")
    try:
        donor = load_from_library(arch, None, pretrained=True)
    except UserError as error:  # here SOURCE.INIT is the key for a file
        raise UserError(str(error).replace("MODEL.CKPT_PATH", "SOURCE.INIT")) from error
    remove_head(donor)
    model.backbone.load_state_dict(donor.state_dict())


def remove_head(model: nn.Module) -> tuple[str, int]:
    """Remove the last linear layer of a network; return its name in the bare network and the number of features."""
    bare = inner_network(model)
    name = find_classifier(bare)
    dim = bare.get_submodule(name).in_features
    replace_module(bare, name, nn.Identity())
    return name, dim


def is_library_name(arch: str) -> bool:
    """Return whether a name asks for a network of torchvision or timm."""
    library, _, name = arch.partition("/")
    return library in LIBRARIES and bool(name)


def load_from_library(arch: str, num_classes: int | None, pretrained: bool) -> nn.Module:
    """Return a library's network for images in [0, 1]; ``num_classes`` None: the library's number.

    ``torchvision/resnet50.IMAGENET1K_V1`` and ``timm/resnet50.tv_in1k`` choose one of several weights.

    Note: pretrained weights are downloaded if the library has not cached them; nothing else is.
    """
    library, _, name = arch.partition("/")
    return (_from_torchvision if library == "torchvision" else _from_timm)(name, num_classes, pretrained)


def without_head(arch: str, pretrained: bool) -> tuple[nn.Module, tuple[str, ...]]:
    """Return a network without its classifier, and the names of that layer in checkpoints."""
    if arch.startswith("timm/"):  # some, such as MAE's, have none to remove
        model = load_from_library(arch, 0, pretrained)
        names = model.model.default_cfg.get("classifier") or ()
        return model, (names,) if isinstance(names, str) else tuple(names)
    whole = load_from_library(arch, None, pretrained) if is_library_name(arch) else ARCHITECTURES.get(arch)(1000)
    return whole, (remove_head(whole)[0],)


def _library_models(library: str) -> list[str]:
    if library == "timm":
        return import_timm().list_models()
    models = import_torchvision("torchvision.models")
    return models.list_models(module=models)


def _owner(name: str) -> str | None:
    """Return the first installed library that has a model of that name."""
    for library in LIBRARIES:
        with suppress(UserError):  # it is not installed
            if name in _library_models(library):
                return library
    return None


def import_timm() -> ModuleType:
    """Return timm, or say how to install it."""
    import_torchvision()  # timm imports it, and fails obscurely if it does not match torch
    try:
        import timm
    except ModuleNotFoundError as error:
        raise UserError("timm is not installed: `pip install 'tta-cattan[timm]'`") from error
    return timm


def _from_torchvision(name: str, num_classes: int | None, pretrained: bool) -> nn.Module:
    models = import_torchvision("torchvision.models")
    name, _, tag = name.partition(".")
    if not pretrained:
        classes = {} if num_classes is None else {"num_classes": num_classes}
        return with_normalization(models.get_model(name, weights=None, **classes), IMAGENET_MEAN, IMAGENET_STD)
    known = models.get_model_weights(name)
    if tag and tag not in known.__members__:
        raise UserError(f"torchvision has no weights {tag!r} of {name}: it has {', '.join(known.__members__)}")
    weights = known[tag] if tag else known.DEFAULT
    _same_classes(f"torchvision/{name}", len(weights.meta["categories"]), num_classes)
    model = _downloaded(f"torchvision's {name}", partial(models.get_model, name, weights=weights))
    transform = weights.transforms()
    return with_normalization(model, transform.mean, transform.std)


def _from_timm(name: str, num_classes: int | None, pretrained: bool) -> nn.Module:
    timm = import_timm()
    try:
        known = timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # a tag of weights that timm does not know
        raise UserError(f"MODEL.ARCH = 'timm/{name}' cannot be built ({first_line(error)})") from error
    if pretrained and known is not None and num_classes:
        _same_classes(f"timm/{name}", known.num_classes, num_classes)
    classes = {} if num_classes is None else {"num_classes": num_classes}
    build = partial(timm.create_model, name, pretrained=pretrained, **classes)
    model = _downloaded(f"timm's {name}", build) if pretrained else build()
    return with_normalization(model, model.default_cfg["mean"], model.default_cfg["std"])


def _same_classes(arch: str, has: int, wanted: int | None) -> None:
    """Refuse pretrained weights for a different number of classes: the library would use a random classifier."""
    if wanted is not None and has != wanted:
        raise UserError(
            f"MODEL.ARCH = {arch!r}: its pretrained weights have {has} classes and the data set has {wanted}; set "
            "MODEL.CKPT_PATH to weights for this data set"
        )


def _downloaded(what: str, build: Callable[[], nn.Module]) -> nn.Module:
    """Build a model whose weights a library fetches; a failed download is a one-line error."""
    logger.info("loading the weights of %s (downloaded where they are not cached)", what)
    try:
        return build()
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"the weights of {what} could not be loaded ({first_line(error)}): get them on a machine with a network "
            "and set MODEL.CKPT_PATH to the file"
        ) from error


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


def placed(model: nn.Module, device: str) -> nn.Module:
    """Return ``model`` on the device that ``DEVICE`` names, channels last: convolutions are faster that way."""
    return model.to(resolve_device(device), memory_format=torch.channels_last)


def load_model(cfg: CfgNode, num_classes: int, family: str | None = None) -> LoadedModel:
    """Return the model that ``MODEL.ARCH`` names, for images in [0, 1].

    ``torchvision/NAME`` and ``timm/NAME`` come from those libraries; other names are our architectures or, for a
    ``family`` (cifar10, cifar100, imagenet), RobustBench's models. ``MODEL.CKPT_PATH`` replaces the weights.
    """
    arch, path = cfg.MODEL.ARCH, cfg.MODEL.CKPT_PATH
    check_arch(arch, family)
    if path:
        model, origin = untrained_model(cfg, num_classes, family), path
        if model is None:
            raise UserError(f"MODEL.CKPT_PATH cannot replace the weights of {arch!r}: use its timm/NAME instead")
        load_weights(inner_network(model), path)
    elif is_library_name(arch):
        library, _, name = arch.partition("/")
        model = load_from_library(arch, num_classes, pretrained=True)
        origin = f"the weights that {library} has for {name}"
    elif find_architecture(arch) is not None:
        raise UserError(f"MODEL.ARCH = {arch!r} comes without weights: set MODEL.CKPT_PATH to a checkpoint of it")
    else:
        model, origin = load_from_robustbench(arch, str(family), cfg.CKPT_DIR)
    return LoadedModel.of(placed(model, cfg.DEVICE), origin)


def untrained_model(cfg: CfgNode, num_classes: int, family: str | None = None) -> nn.Module | None:
    """Return the model that ``MODEL.ARCH`` names with random weights; None if RobustBench cannot build it that way."""
    if is_library_name(cfg.MODEL.ARCH):
        return load_from_library(cfg.MODEL.ARCH, num_classes, pretrained=False)
    if (architecture := find_architecture(cfg.MODEL.ARCH)) is not None:
        return architecture(num_classes, cfg.MODEL)
    return untrained_of_robustbench(cfg.MODEL.ARCH, family)


def check_arch(arch: str, family: str | None) -> None:
    if arch.startswith(SHOT_PREFIX):
        check_arch(arch.removeprefix(SHOT_PREFIX), None)
    elif is_library_name(arch):
        library, _, name = arch.partition("/")
        known = _library_models(library)
        if name.split(".")[0] not in known:
            raise UserError(f"MODEL.ARCH = {arch!r}: {library} has no model {name!r}.{nearest(name, known)}")
    elif arch not in ARCHITECTURES and arch not in robustbench_names(family):
        if owner := _owner(arch):  # before the nearest name: resnet50 is not our resnet50_v1
            other = "; resnet50_v1 is Caffe's, with other strides and pre-processing" if arch == "resnet50" else ""
            raise UserError(f"MODEL.ARCH = {arch!r}: say whose it is, {owner}/{arch}{other}")
        names = [*ARCHITECTURES.registered_names(), *robustbench_names(family)]
        raise UserError(
            f"MODEL.ARCH = {arch!r} is not known.{nearest(arch, names)} Known: torchvision/NAME, timm/NAME, "
            f"{', '.join(names[:12])}{', ...' if len(names) > 12 else ''} (tta-cattan --list)"
        )
