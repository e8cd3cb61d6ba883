"""The statistics that a stream's batches were normalised by, averaged, for a plain network that has to have its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from tta_cattan.util.state import stateful

Notes = Mapping[int, Sequence[Tensor]]  # mean and variance by the layer's place


@stateful
class StreamStatistics:
    """Running mean ``M`` and variance ``V`` of each layer's input, from the means and variances of the batches.

    ``V <- (1 - w) (V + w (m - M)^2) + w v`` and ``M <- M + w (m - M)``: the variance of all samples, what lies between
    the batches included, with ``w = 1/n`` until it has fallen to ``momentum``.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: dict[int, Tensor] = {}
        self.var: dict[int, Tensor] = {}

    @torch.no_grad()
    def add(self, notes: Notes, momentum: float) -> None:
        """Take in what one batch was normalised by."""
        if not notes:
            return
        self.count += 1
        weight = max(1 / self.count, momentum)
        for place, (mean, var) in notes.items():
            if place not in self.mean:
                self.mean[place], self.var[place] = mean.clone(), var.clone()
        means, variances = [self.mean[place] for place in notes], [self.var[place] for place in notes]
        shifts = torch._foreach_sub([mean for mean, _ in notes.values()], means)
        torch._foreach_add_(means, shifts, alpha=weight)
        torch._foreach_addcmul_(variances, shifts, shifts, value=weight)
        torch._foreach_lerp_(variances, [var for _, var in notes.values()], weight)

    @torch.no_grad()
    def write_to(self, layers: Sequence[_NormBase]) -> None:
        """Make the averages the running statistics of a network's layers."""
        for place, layer in enumerate(layers):
            if place in self.mean and self.var[place].min() >= 0:  # below 0: the passes did not use the layer
                layer.running_mean.copy_(self.mean[place])
                layer.running_var.copy_(self.var[place])


@contextmanager
def noting(layers: Sequence[_NormBase]) -> Iterator[Notes]:
    """Note the mean and variance of each layer's batch, there after the block; of a layer that is not called, -1.

    Note: torch computes both anyway. Buffers in the place of the running ones, with a momentum of 1, receive them.
    """
    kept = [(dict(layer._buffers), layer.momentum, layer.track_running_stats) for layer in layers]
    notes: dict[int, Sequence[Tensor]] = {}
    for layer in layers:
        mean, var = torch.zeros_like(layer.running_mean), torch.full_like(layer.running_var, -1)
        layer._buffers.update(running_mean=mean, running_var=var, num_batches_tracked=None)
        layer.momentum, layer.track_running_stats = 1.0, True
    try:
        yield notes
    finally:
        for place, (layer, (buffers, momentum, tracks)) in enumerate(zip(layers, kept, strict=True)):
            mean, var = layer.running_mean, layer.running_var
            layer._buffers.update(buffers)
            layer.momentum, layer.track_running_stats = momentum, tracks
            notes[place] = mean, var
