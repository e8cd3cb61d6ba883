"""A plain copy of an adapted model, which needs nothing of this package."""

from __future__ import annotations

import copy

from torch import nn

from tta_cattan.network.normalization import statistics_layers
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
