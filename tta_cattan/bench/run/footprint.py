"""How many bytes a method keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tta_cattan.methods.base import AdaptationMethod
from tta_cattan.methods.safety import Safety
from tta_cattan.methods.source import Source
from tta_cattan.methods.tent import Tent
from tta_cattan.network.normalization import affine_parameters
from tta_cattan.network.sharing import copy_for_adaptation
from tta_cattan.util.precision import Precision

# What every method has, TENT too, and what is no part of the state that it adapts.
_COMMON = (torch.optim.Optimizer, Precision, Safety, type)


def stored_bytes(method: AdaptationMethod) -> int:
    """Return the bytes of all tensors that a method holds, its model's included, its optimiser's and gradients' not.

    Note: what two attributes share counts once.
    """
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(method, set())}
    return sum(storages.values())


def tent_bytes(model: nn.Module) -> int:
    """Return what TENT would keep for ``model``; of a model without normalisation layers it is the model alone."""
    kept = copy_for_adaptation(model)
    return stored_bytes(Tent(kept) if affine_parameters(kept)[0] else Source(kept))


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Yield every tensor that can be reached from ``value`` through modules, containers and objects of this package."""
    if isinstance(value, Tensor):
        yield value
        return
    if id(value) in seen or isinstance(value, _COMMON):
        return
    seen.add(id(value))
    inside: Any = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, (list, tuple, set)):
        inside = value
    elif isinstance(value, nn.Module) or type(value).__module__.startswith("tta_cattan."):
        inside = getattr(value, "__dict__", {}).values()
    for part in inside:
        yield from _tensors(part, seen)
