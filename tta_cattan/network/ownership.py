"""Ownership of networks: which ones a method accepts, and copies with or without shared memory."""

from __future__ import annotations

import copy
import weakref

import torch
from torch import nn

from tta_cattan.network.normalization import StreamStatistics, affine_parameters, statistics_layers
from tta_cattan.util.errors import UserError

_WRAPPED: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
_HALF = (torch.float16, torch.bfloat16)


def mark_wrapped(model: nn.Module, by: str) -> None:
    """Record that a network and all its submodules belong to a method."""
    _WRAPPED.update(dict.fromkeys(model.modules(), by))


def require_plain(model: object) -> None:
    """Reject anything but a network, and one that is wrapped, compiled or replicated, or can take no gradients."""
    name = type(model).__name__
    if not isinstance(model, nn.Module):
        kind = "a class" if isinstance(model, type) else f"a {name}"
        raise UserError(f"model = {str(model)[:60]!r} is {kind}: give a torch.nn.Module with its weights loaded")
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


def require_adaptable(model: nn.Module, method: str) -> None:
    """Reject a network without affines, or in half precision, where an update of 1e-3 is lost or underflows."""
    if not affine_parameters(model)[0]:
        raise UserError(
            f"{type(model).__name__} has no normalisation layer with affine parameters, and {method} adapts nothing "
            "else: use a model with BatchNorm, LayerNorm, GroupNorm or InstanceNorm, or MODEL.ADAPTATION source"
        )
    for name, param in model.named_parameters():
        if param.dtype in _HALF:
            raise UserError(
                f"{name} is {str(param.dtype).removeprefix('torch.')}, too coarse for the updates of {method}: give "
                "the network in float32 (.float()), with mixed_precision=True for speed"
            )


def plain_copy(model: nn.Module, calibration: StreamStatistics) -> nn.Module:
    """Return a frozen copy of ``model`` in evaluation mode whose running statistics are the calibrated ones."""
    plain = copy.deepcopy(model)
    layers = statistics_layers(plain)
    calibration.write_to(layers)
    for layer in layers:
        layer.track_running_stats = True
    for param in plain.parameters():
        param.grad = None
    return plain.requires_grad_(False).eval()


def copy_for_adaptation(model: nn.Module) -> nn.Module:
    """Return a copy that has its own normalisation parameters and shares the memory of all others.

    Note: a shared parameter is a separate object, so unfreezing or replacing it does not affect ``model``. Unfrozen
    parameters must get their own memory from ``own_free_parameters`` before they are updated in place.
    """
    updated = {id(param) for param in affine_parameters(model)[0]}
    memo = {
        id(param): nn.Parameter(param.detach(), requires_grad=False)
        for param in model.parameters()
        if id(param) not in updated
    }
    return copy.deepcopy(model, memo)


def own_free_parameters(adapted: nn.Module, model: nn.Module) -> None:
    """Give ``adapted`` its own memory for every trainable parameter whose memory it shares with ``model``."""
    shared = {param.data_ptr() for param in model.parameters()}
    for param in adapted.parameters():
        if param.requires_grad and param.data_ptr() in shared:
            param.data = param.data.clone()
