"""What may be handed to a method as its network."""

from __future__ import annotations

import weakref

import torch
from torch import nn

from tta_cattan.util.errors import UserError

_WRAPPED: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
_HALF = (torch.float16, torch.bfloat16)


def mark_wrapped(model: nn.Module, by: str) -> None:
    """Remember that a network, part by part, belongs to a method."""
    _WRAPPED.update(dict.fromkeys(model.modules(), by))


def require_plain(model: nn.Module) -> None:
    """Refuse a network that is wrapped already, compiled or replicated, or whose tensors can take no gradients."""
    name = type(model).__name__
    by = next((_WRAPPED[module] for module in model.modules() if module in _WRAPPED), None)
    if by is not None or hasattr(model, "forward_and_adapt"):
        raise UserError(
            f"{name} is wrapped already, by {by or name}: a network belongs to one method; give each a copy "
            "(copy.deepcopy) of the network before it is wrapped"
        )
    if hasattr(model, "_orig_mod"):
        raise UserError("the network is compiled, and adaptation changes it: give the network before torch.compile")
    parallel = isinstance(model, nn.parallel.DistributedDataParallel) or (
        isinstance(model, nn.DataParallel) and len(model.device_ids) > 1
    )
    if parallel:
        raise UserError(f"{name} runs copies of the network that do not adapt together: give its .module")
    if torch.is_inference_mode_enabled() or any(param.is_inference() for param in model.parameters()):
        raise UserError(
            f"{name} was made, or is being wrapped, under torch.inference_mode, whose tensors take no gradients: do it "
            "outside"
        )


def require_precision(model: nn.Module, method: str) -> None:
    """Refuse to adapt a network in half precision, in which an update of 1e-3 is lost or its square underflows."""
    for name, param in model.named_parameters():
        if param.dtype in _HALF:
            raise UserError(
                f"{name} is {str(param.dtype).removeprefix('torch.')}, too coarse for the updates of {method}: give "
                "the network in float32 (.float()), with mixed_precision=True for speed"
            )
