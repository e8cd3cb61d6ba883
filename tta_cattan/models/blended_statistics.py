"""Normalisation between the source's statistics and the batch's, by how far the two are apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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
    source_mean, source_var = layer.running_mean.float(), layer.running_var.float() + layer.eps
    means, variances = _moments_of_rows(x.float())
    mean = means.mean(0)
    squares = variances + (means - mean).square() + layer.eps
    var = squares.mean(0)
    with torch.no_grad():
        found = jeffreys_divergence(mean, var, source_mean, source_var)
        chance = _divergence(_error_of_mean(means, views), _error_of_mean(squares, views), var, source_var)
        weight = (found - chance).clamp(min=0) / (found + scale)
    blended_var = source_var + weight * (var - source_var)
    ratio = (source_var / blended_var).sqrt()
    offset = source_mean - ratio * (source_mean + weight * (mean - source_mean))
    shape = (1, -1) + (1,) * (x.ndim - 2)
    return torch.addcmul(offset.view(shape), x, ratio.view(shape)).to(x.dtype)


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


def _divergence(shift: Tensor, spread: Tensor, var: Tensor, other_var: Tensor) -> Tensor:
    """Return the divergence of two variances, given the squared differences of the means and of the variances."""
    return ((shift * (var + other_var) + spread) / (4 * var * other_var)).mean()


def _moments_of_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and variance of each row's channels over its positions (n x C)."""
    if x.ndim == 2:
        return x, torch.zeros_like(x)
    variances, means = torch.var_mean(x.flatten(2), 2, correction=0)
    return means, variances


def _error_of_mean(values: Tensor, views: int) -> Tensor:
    """Return the squared standard error of the mean over the samples, whose views are not independent."""
    samples = values.unflatten(0, (views, -1)).mean(0)
    return samples.var(0) / len(samples)
