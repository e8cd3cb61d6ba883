"""Source models by name, with the weights that they really have."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import nn

from tta_cattan.errors import UserError, nearest
from tta_cattan.files import sha256_tensors
from tta_cattan.models.architectures import ARCHITECTURES
from tta_cattan.models.checkpoints import load_weights
from tta_cattan.models.input_normalization import IMAGENET_MEAN, IMAGENET_STD, with_normalization
from tta_cattan.models.robustbench_zoo import load_from_robustbench, robustbench_names
from tta_cattan.upstream.torchvision import import_torchvision

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A source model, where its weights came from, and their hash."""

    model: nn.Module
    origin: str
    sha256: str

    @classmethod
    def of(cls, model: nn.Module, origin: str) -> LoadedModel:
        """Freeze ``model`` for evaluation and hash the weights that it really has."""
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
        reason = str(error).splitlines()[0]
        raise UserError(f"DEVICE = {name!r} cannot be used here ({reason}): use 'auto' or 'cpu'") from error


def load_model(cfg: CfgNode, num_classes: int, family: str | None = None) -> LoadedModel:
    """Return the model that ``MODEL.ARCH`` names, for images in [0, 1].

    ``torchvision/NAME`` and ``timm/NAME`` are theirs; other names are our architectures' or, for a benchmark of
    RobustBench's (``family``: cifar10, cifar100, imagenet), those of its zoo. ``MODEL.CKPT_PATH`` replaces the weights.
    """
    check_arch(cfg.MODEL.ARCH, family)
    arch, path = cfg.MODEL.ARCH, cfg.MODEL.CKPT_PATH
    library, _, name = arch.partition("/")
    if library in ("torchvision", "timm") and name:
        build = _from_torchvision if library == "torchvision" else _from_timm
        model = build(name, num_classes, pretrained=not path)
        origin = path or f"the weights that {library} has for {name}"
    elif arch in ARCHITECTURES:
        if not path:
            raise UserError(f"MODEL.ARCH = {arch!r} comes without weights: set MODEL.CKPT_PATH to a checkpoint of it")
        model, origin = ARCHITECTURES.get(arch)(num_classes, cfg.MODEL), path
    else:
        model, origin = load_from_robustbench(arch, family, cfg.CKPT_DIR, path)
    if path:
        load_weights(_inner(model), path)
    return LoadedModel.of(model.to(resolve_device(cfg.DEVICE)), str(origin))


def check_arch(arch: str, family: str | None) -> None:
    """Refuse a name that nobody has, before anything is loaded."""
    library, _, name = arch.partition("/")
    if library in ("torchvision", "timm") and name:
        known = _torchvision_names() if library == "torchvision" else _timm_names()
        if name.split(".")[0] not in known:
            raise UserError(f"MODEL.ARCH = {arch!r}: {library} has no model {name!r}.{nearest(name, known)}")
        return
    if arch in ARCHITECTURES:
        return
    names = [*ARCHITECTURES.registered_names(), *robustbench_names(family)]
    if arch not in names:
        raise UserError(
            f"MODEL.ARCH = {arch!r} is not known.{nearest(arch, names)} Known: torchvision/NAME, timm/NAME, "
            f"{', '.join(names[:12])}{', ...' if len(names) > 12 else ''} (tta-cattan --list)"
        )


def _inner(model: nn.Module) -> nn.Module:
    """Return the network inside ``Sequential(normalize, model)``: checkpoints are of the bare network."""
    return model.model if isinstance(model, nn.Sequential) and hasattr(model, "normalize") else model


def _torchvision_names() -> list[str]:
    return import_torchvision("torchvision.models").list_models(module=import_torchvision("torchvision.models"))


def _timm_names() -> list[str]:
    return import_timm().list_models()


def import_timm() -> ModuleType:
    """Return timm, or say how to install it."""
    import_torchvision()  # timm imports it, and fails obscurely where the pair does not match
    try:
        import timm
    except ModuleNotFoundError as error:
        raise UserError("timm is not installed: `pip install 'tta-cattan[timm]'`") from error
    return timm


def _from_torchvision(name: str, num_classes: int, pretrained: bool) -> nn.Module:
    models = import_torchvision("torchvision.models")
    if not pretrained:
        return with_normalization(
            models.get_model(name, weights=None, num_classes=num_classes), IMAGENET_MEAN, IMAGENET_STD
        )
    weights = models.get_model_weights(name).DEFAULT
    _same_classes(f"torchvision/{name}", len(weights.meta["categories"]), num_classes)
    model = downloaded(f"torchvision's {name}", partial(models.get_model, name, weights=weights))
    transform = weights.transforms()
    return with_normalization(model, transform.mean, transform.std)


def _from_timm(name: str, num_classes: int, pretrained: bool) -> nn.Module:
    timm = import_timm()
    known = timm.get_pretrained_cfg(name) if pretrained else None
    if known is not None:
        _same_classes(f"timm/{name}", known.num_classes, num_classes)
    build = partial(timm.create_model, name, pretrained=pretrained, num_classes=num_classes)
    model = downloaded(f"timm's {name}", build) if pretrained else build()
    return with_normalization(model, model.default_cfg["mean"], model.default_cfg["std"])


def _same_classes(arch: str, has: int, wanted: int) -> None:
    """Refuse pretrained weights of another number of classes: a library would give the model a random classifier."""
    if has != wanted:
        raise UserError(
            f"MODEL.ARCH = {arch!r}: its pretrained weights are of {has} classes and the data set has {wanted}; set "
            "MODEL.CKPT_PATH to weights for this data set"
        )


def downloaded(what: str, build: Callable[[], nn.Module]) -> nn.Module:
    """Build a model whose weights a library fetches; a failed download is said in one line."""
    logger.info("loading the weights of %s (downloaded where they are not cached)", what)
    try:
        return build()
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:160]
        raise UserError(
            f"the weights of {what} could not be had ({reason}): get them on a machine with a network and set "
            "MODEL.CKPT_PATH to the file"
        ) from error
