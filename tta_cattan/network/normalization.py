"""Normalisation layers: finding them and their affines; choosing, blending and averaging their statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from tta_cattan.network.layers import hooked
from tta_cattan.util.state import stateful

STATISTICS = ("batch", "source", "running", "blend")

_KNOWN = (_NormBase, nn.LayerNorm, nn.GroupNorm)


def is_normalization(module: nn.Module) -> bool:
    """Return whether a module normalises: torch's own classes and, by name and shape, timm's and the user's variants.

    Note: a class outside torch counts if its name contains "norm" and it has a one-dimensional ``weight``
    (RMSNorm, EvoNorm, FilterResponseNorm, ...).
    """
    if isinstance(module, _KNOWN):
        return True
    weight = module._parameters.get("weight")
    return weight is not None and weight.ndim == 1 and "norm" in type(module).__name__.lower()


def affine_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[str]]:
    """Return the scale and shift parameters of the normalisation layers, and their names."""
    named: dict[str, nn.Parameter] = {}
    for name, layer in model.named_modules():
        for kind in ("weight", "bias") if is_normalization(layer) else ():  # weight is scale, bias is shift
            param = layer._parameters.get(kind)
            if param is not None:
                named[f"{name}.{kind}" if name else kind] = param
    return list(named.values()), list(named)


def statistics_layers(model: nn.Module) -> list[_NormBase]:
    """Return the layers that can choose between batch and running statistics."""
    return [m for m in model.modules() if isinstance(m, _NormBase) and m.running_mean is not None]


def use_statistics(layers: list[_NormBase], mode: str, adapting: bool) -> None:
    """Make ``layers`` normalise with the statistics that ``mode`` names.

    - ``batch``: those of the current batch, when adapting and predicting; running statistics stay unchanged.
    - ``source``: the running statistics of the source model.
    - ``running``: the batch's when adapting, which update the running ones; the running ones when predicting.
    - ``blend``: the source's, on inputs that ``blending`` has transformed.

    Note: torch reads both ``training`` and ``track_running_stats``; in training mode without tracking it uses the
    batch and leaves the buffers alone. (An InstanceNorm that tracks statistics still updates them; nothing reads them.)
    """
    for layer in layers:
        layer.training = mode == "batch" or (mode == "running" and adapting)
        layer.track_running_stats = mode != "batch"


def jeffreys_divergence(mean: Tensor, var: Tensor, other_mean: Tensor, other_var: Tensor) -> Tensor:
    """Return ``(KL(p || q) + KL(q || p)) / 2`` of each channel's normal distributions, averaged over the channels."""
    return divergence((mean - other_mean).square(), (var - other_var).square(), var, other_var)


def blend_towards_source(
    x: Tensor, layer: _BatchNorm, scale: float, views: int = 1, used: list[Tensor] | None = None
) -> Tensor:
    """Transform ``x`` so that ``layer``, normalising with the source's statistics, in effect uses blended ones.

    These are ``m = m_s + w (m_b - m_s)`` and ``v = v_s + w (v_b - v_s)`` of the source's and the batch's mean and
    variance, with one ``w = max(0, D - N) / (D + scale)`` for the whole layer: ``D`` is the divergence of the two,
    ``N`` the part expected by chance from a batch of this size. The batch holds ``views`` rows per sample, all samples
    of the first view first. ``used`` receives ``m`` and ``v``.

    Note: gradients flow through ``m`` and ``v`` as they do through a batch's own statistics; ``w`` is a constant.
    """
    source = layer.running_mean.float(), layer.running_var.float() + layer.eps
    return _Moved.apply(x, *source, layer.eps, scale, views, used)


@contextmanager
def blending(layers: Sequence[_NormBase], scale: float, views: int = 1) -> Iterator[Mapping[int, Sequence[Tensor]]]:
    """Make the BatchNorm layers among ``layers``, which are set to the source's statistics, use blended ones.

    The dictionary holds the mean and variance that were used, by the layer's index.
    """
    used: dict[int, list[Tensor]] = {}

    def blend(place: int, layer: _BatchNorm, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        used[place] = []
        return (blend_towards_source(args[0], layer, scale, views, used[place]), *args[1:])

    handles = [
        layer.register_forward_pre_hook(partial(blend, place))
        for place, layer in enumerate(layers)
        if isinstance(layer, _BatchNorm)
    ]
    with hooked(handles):
        yield used


class _Moved(torch.autograd.Function):
    """``y = (x - m) r + m_s`` with ``r = sqrt(v_s / v)``, where ``m`` and ``v`` depend on ``x`` and ``w`` does not.

    ``dx = r (dy - w sum(dy) / N - (w / v) (x - m_b) sum(dy (x - m)) / N)`` over the N values of a channel.

    Note: ``x`` is recovered from ``y``, which the layer keeps anyway: no more memory than batch normalisation.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        source_mean: Tensor,
        source_var: Tensor,
        eps: float,
        scale: float,
        views: int,
        used: list[Tensor] | None,
    ) -> Tensor:
        rows = x.float().flatten(2) if x.ndim > 2 else x.float()[..., None]
        means = rows.mean(2)
        mean = means.mean(0)
        centred = rows - mean[:, None]
        squares = torch.linalg.vector_norm(centred, dim=2).square() / rows.shape[2] + eps
        var = squares.mean(0)
        found = jeffreys_divergence(mean, var, source_mean, source_var)
        chance = divergence(_error_of_mean(means, views), _error_of_mean(squares, views), var, source_var)
        weight = (found - chance).clamp(min=0) / (found + scale)
        blended_var = torch.lerp(source_var, var, weight)
        ratio = (source_var / blended_var).sqrt()
        centre = source_mean + ratio * (1 - weight) * (mean - source_mean)  # what the batch's mean becomes
        if used is not None:
            used += [torch.lerp(source_mean, mean, weight), blended_var - eps]
        moved = centred.mul_(ratio[:, None]).add_(centre[:, None]).view_as(x).to(x.dtype)
        ctx.save_for_backward(moved, source_mean, ratio, centre, weight, weight / blended_var)
        return moved

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        moved, source_mean, ratio, centre, weight, pull = ctx.saved_tensors
        dims = [0, *range(2, grad.ndim)]
        total = grad.sum(dims, dtype=torch.float32)
        slope = ((grad * moved).sum(dims, dtype=torch.float32) - source_mean * total) / ratio  # sum(dy (x - m))
        n = grad.numel() // grad.shape[1]
        pulled = pull * slope / n
        constant = pulled * centre - ratio * weight * total / n
        out = torch.addcmul(_channels(constant, grad), grad, _channels(ratio, grad))
        return out.addcmul_(moved, _channels(-pulled, grad)).to(grad.dtype), *[None] * 6


def _channels(values: Tensor, like: Tensor) -> Tensor:
    """Reshape one value per channel to broadcast over ``like``."""
    return values.view(1, -1, *[1] * (like.ndim - 2))


def divergence(shift: Tensor, spread: Tensor, var: Tensor, other_var: Tensor) -> Tensor:
    """Return the Jeffreys divergence from the squared differences of means and of variances, and the variances."""
    return ((shift * (var + other_var) + spread) / (4 * var * other_var)).mean()


def _error_of_mean(values: Tensor, views: int) -> Tensor:
    """Return the squared standard error of the mean over the samples; views of one sample are not independent."""
    samples = values.unflatten(0, (views, -1)).mean(0)
    return samples.var(0) / len(samples)


Notes = Mapping[int, Sequence[Tensor]]  # mean and variance, by the layer's index


@stateful
class StreamStatistics:
    """Running mean ``M`` and variance ``V`` of each layer's input, from the batch statistics.

    ``V <- (1 - w) (V + w (m - M)^2) + w v`` and ``M <- M + w (m - M)``: the variance over all samples, including the
    variance between batches, with ``w = 1/n`` until it has fallen to ``momentum``.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: dict[int, Tensor] = {}
        self.var: dict[int, Tensor] = {}

    @torch.no_grad()
    def add(self, notes: Notes, momentum: float) -> None:
        """Add the statistics that normalised one batch."""
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
        """Write the averages into the running statistics of a network's layers."""
        for place, layer in enumerate(layers):
            if place in self.mean and self.var[place].min() >= 0:  # negative: the layer was not called
                layer.running_mean.copy_(self.mean[place])
                layer.running_var.copy_(self.var[place])


@contextmanager
def noting(layers: Sequence[_NormBase]) -> Iterator[Notes]:
    """Record the batch mean and variance of each layer, available after the block; variance -1 if it is not called.

    Note: torch computes both anyway. Temporary running statistics with a momentum of 1 receive them.
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
