"""Normalisation between the source's statistics and the batch's, by how far the two are apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase


def jeffreys_divergence(mean: Tensor, var: Tensor, other_mean: Tensor, other_var: Tensor) -> Tensor:
    """``(KL(p || q) + KL(q || p)) / 2`` of the normal distributions of each channel, averaged over the channels."""
    return _divergence((mean - other_mean).square(), (var - other_var).square(), var, other_var)


def blend_towards_source(x: Tensor, layer: _BatchNorm, scale: float, views: int = 1) -> Tensor:
    """Return ``x`` such that ``layer``, normalising by the source's statistics, normalises by blended ones.

    These are ``m = m_s + w (m_b - m_s)`` and ``v = v_s + w (v_b - v_s)`` of the source's and the batch's mean and
    variance, with one ``w = max(0, D - N) / (D + scale)`` for the whole layer: ``D`` is the divergence of the two,
    ``N`` what chance alone would make of it in a batch of so few samples. The batch holds ``views`` rows of each
    sample, all samples of the first view first.

    Note: gradients flow through ``m`` and ``v`` as they do through a batch's own statistics; ``w`` is a constant.
    """
    return _Moved.apply(x, layer.running_mean.float(), layer.running_var.float() + layer.eps, layer.eps, scale, views)


@contextmanager
def blending(layers: Sequence[_NormBase], scale: float, views: int = 1) -> Iterator[None]:
    """Let the layers of batch normalisation among ``layers``, set to the source's statistics, use blended ones."""

    def blend(layer: _BatchNorm, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (blend_towards_source(args[0], layer, scale, views), *args[1:])

    handles = [layer.register_forward_pre_hook(blend) for layer in layers if isinstance(layer, _BatchNorm)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Moved(torch.autograd.Function):
    """``y = (x - m) r + m_s`` with ``r = sqrt(v_s / v)``, where ``m`` and ``v`` depend on ``x`` and ``w`` does not.

    ``dx = r (dy - w sum(dy) / N - (w / v) (x - m_b) sum(dy (x - m)) / N)`` of the N values of a channel.

    Note: ``x`` is found again from ``y``, which the layer keeps anyway: no more memory than batch normalisation.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, source_mean: Tensor, source_var: Tensor, eps: float, scale: float, views: int
    ) -> Tensor:
        rows = x.float().flatten(2) if x.ndim > 2 else x.float()[..., None]
        means = rows.mean(2)
        mean = means.mean(0)
        centred = rows - mean[:, None]
        squares = torch.linalg.vector_norm(centred, dim=2).square() / rows.shape[2] + eps
        var = squares.mean(0)
        found = jeffreys_divergence(mean, var, source_mean, source_var)
        chance = _divergence(_error_of_mean(means, views), _error_of_mean(squares, views), var, source_var)
        weight = (found - chance).clamp(min=0) / (found + scale)
        blended_var = torch.lerp(source_var, var, weight)
        ratio = (source_var / blended_var).sqrt()
        centre = source_mean + ratio * (1 - weight) * (mean - source_mean)  # what the batch's mean becomes
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
        return out.addcmul_(moved, _channels(-pulled, grad)).to(grad.dtype), None, None, None, None, None


def _channels(values: Tensor, like: Tensor) -> Tensor:
    """Return one value per channel in the shape that broadcasts over ``like``."""
    return values.view(1, -1, *[1] * (like.ndim - 2))


def _divergence(shift: Tensor, spread: Tensor, var: Tensor, other_var: Tensor) -> Tensor:
    """Return the divergence of two variances, given the squared differences of the means and of the variances."""
    return ((shift * (var + other_var) + spread) / (4 * var * other_var)).mean()


def _error_of_mean(values: Tensor, views: int) -> Tensor:
    """Return the squared standard error of the mean over the samples, whose views are not independent."""
    samples = values.unflatten(0, (views, -1)).mean(0)
    return samples.var(0) / len(samples)
