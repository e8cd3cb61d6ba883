"""Copies of a model: plain ones that need nothing of this package, and ones that share all but what adapts."""

from __future__ import annotations

import copy

from torch import nn

from tta_cattan.network.normalization import affine_parameters, statistics_layers
from tta_cattan.util.errors import UserError


def plain_copy(model: nn.Module, statistics: str) -> nn.Module:
    """Return a frozen copy of ``model`` in evaluation mode that normalises by the statistics that are named.

    Note: torch's layers know those of the batch and their own; between the two, ``"blend"``, there is nothing.
    """
    if statistics == "blend" and statistics_layers(model):
        raise UserError(
            "a layer of a plain model normalises by the batch's statistics or by its own, not between the two: "
            "what was adapted with BN.STATISTICS blend (statistics='blend') cannot be folded. Adapt with batch, "
            "source or running for a model that can"
        )
    plain = copy.deepcopy(model)
    if statistics == "batch":
        _use_batch_statistics(plain)
    for layer in statistics_layers(plain):
        layer.track_running_stats = True
    for param in plain.parameters():
        param.grad = None
    return plain.requires_grad_(False).eval()


def _use_batch_statistics(model: nn.Module) -> None:
    """Make every statistics layer use its batch's statistics in any mode.

    Note: this is how TENT configures a model; it drops the running statistics, so it is for copies.
    """
    for layer in statistics_layers(model):
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None


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
