"""Source models by name, with the weights that they really have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from tta_cattan.bench.models.architectures import ARCHITECTURES, find_architecture
from tta_cattan.bench.models.checkpoints import load_weights
from tta_cattan.bench.models.input_normalization import inner_network
from tta_cattan.bench.models.libraries import check_library_name, is_library_name, load_from_library
from tta_cattan.bench.models.robustbench_zoo import load_from_robustbench, robustbench_names
from tta_cattan.bench.models.shot_network import SHOT_PREFIX
from tta_cattan.util.errors import UserError, nearest
from tta_cattan.util.files import sha256_tensors

if TYPE_CHECKING:
    from yacs.config import CfgNode


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


def untrained_model(cfg: CfgNode, num_classes: int) -> nn.Module | None:
    """Return the model that ``MODEL.ARCH`` names with random weights; None for RobustBench's."""
    if is_library_name(cfg.MODEL.ARCH):
        return load_from_library(cfg.MODEL.ARCH, num_classes, pretrained=False)
    architecture = find_architecture(cfg.MODEL.ARCH)
    return None if architecture is None else architecture(num_classes, cfg.MODEL)


def check_arch(arch: str, family: str | None) -> None:
    """Refuse a name that nobody has, before anything is loaded."""
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
        raise UserError(
            f"MODEL.ARCH = {arch!r} is not known.{nearest(arch, names)} Known: torchvision/NAME, timm/NAME, "
            f"{', '.join(names[:12])}{', ...' if len(names) > 12 else ''} (tta-cattan --list)"
        )
