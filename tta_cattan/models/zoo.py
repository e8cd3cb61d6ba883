"""Models by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from tta_cattan.errors import UserError
from tta_cattan.files import sha256_tensors
from tta_cattan.models.small_cnn import SmallCNN
from tta_cattan.models.small_resnet import SmallResNet
from tta_cattan.registry import Registry

# Architectures that are small enough to be trained where they are used: name -> builder(num_classes).
SMALL_MODELS: Registry[Callable[[int], nn.Module]] = Registry("model")
SMALL_MODELS.register("small_resnet")(SmallResNet)
SMALL_MODELS.register("small_cnn")(SmallCNN)


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
