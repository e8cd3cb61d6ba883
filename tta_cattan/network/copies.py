"""Copies of a model: plain ones that need nothing of this package, and ones that share all but what adapts."""

from __future__ import annotations

import copy

from torch import nn

from tta_cattan.network.calibration import StreamStatistics
from tta_cattan.network.normalization import affine_parameters, statistics_layers


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
    """Return a copy with parameters of its own for the normalisation layers, and the memory of all others shared.

    Note: a shared parameter is an object of its own, so that freeing or replacing it does not reach ``model``; what is
    freed must be made the copy's by ``own_free_parameters`` before it is updated in place.
    """
    updated = {id(param) for param in affine_parameters(model)[0]}
    memo = {
        id(param): nn.Parameter(param.detach(), requires_grad=False)
        for param in model.parameters()
        if id(param) not in updated
    }
    return copy.deepcopy(model, memo)


def own_free_parameters(adapted: nn.Module, model: nn.Module) -> None:
    """Give ``adapted`` its own memory for every parameter that takes gradients and lies in that of ``model``."""
    shared = {param.data_ptr() for param in model.parameters()}
    for param in adapted.parameters():
        if param.requires_grad and param.data_ptr() in shared:
            param.data = param.data.clone()
