"""Whitening with the target's moments, colouring with the source's, and projection onto the source's subspace.

Channels are the features; images and positions are the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from tta_cattan.network.layers import channel_place
from tta_cattan.network.normalization import divergence
from tta_cattan.util.state import stateful

TINY = 1e-5
_POSITIONS = 16  # positions sampled per side of a feature map; neighbours add little
_DIRECTIONS = 64  # most main directions of a signature
_RIDGE = 0.005  # fraction of the mean variance that is added to both covariances
_PAIRS = 20.0  # images at which covariances get half the weight of variances


@stateful
@dataclass
class Moments:
    """Running moments of one layer's input: mean (C), covariance (C x C) or variance (C), and their noise.

    ``mean_noise`` and ``var_noise`` (C) are the variances over images of per-image estimates of mean and variance.
    """

    mean: Tensor
    cov: Tensor
    mean_noise: Tensor
    var_noise: Tensor

    @classmethod
    def zeros(cls, channels: int, full: bool, device: torch.device) -> Moments:
        """Return empty moments, which a first ``absorb`` with ``share`` 1 replaces."""
        cov = torch.zeros(channels, channels) if full else torch.zeros(channels)
        values = (torch.zeros(channels), cov, torch.zeros(channels), torch.zeros(channels))
        return cls(*(value.to(device) for value in values))

    @property
    def var(self) -> Tensor:
        """The variance of each channel."""
        return self.cov.diagonal() if self.cov.ndim == 2 else self.cov

    def absorb(self, rows: Tensor, share: float) -> bool:
        """Merge in a batch (images x C x positions) that makes up ``share`` of all images seen.

        ``m' = m + a d`` and ``V' = V + a (V_b - V) + a (1 - a) d d^T`` with ``d = m_b - m``: exact for ``a = n_b / n``.
        A batch whose fourth powers are not finite is left out; return whether it was merged.
        """
        means, variances = image_moments(rows)
        mean = means.mean(0)
        shift = mean - self.mean
        moved = self.mean + share * shift
        squares = variances + (means - moved).square()
        if not torch.isfinite(squares.square().sum()):
            return False
        self.mean = moved
        if self.cov.ndim == 2:
            flat = rows.transpose(0, 1).flatten(1) - mean[:, None]
            cov = flat @ flat.T / flat.shape[1]
            self.cov = torch.lerp(self.cov, cov, share).addr(shift, shift, alpha=share * (1 - share))
        else:
            cov = variances.mean(0) + (means - mean).square().mean(0)
            self.cov = torch.lerp(self.cov, cov, share) + share * (1 - share) * shift.square()
        self.mean_noise = torch.lerp(self.mean_noise, (means - self.mean).square().mean(0), share)
        self.var_noise = torch.lerp(self.var_noise, (squares - self.var).square().mean(0), share)
        return True


def sampled(x: Tensor) -> Tensor:
    """Return a layer's input as images x C x positions in float32, at most 16 x 16 positions of each image."""
    if x.ndim == 2:
        return x.float()[..., None]
    places = tuple(slice(None, None, step) for step in sampling(x.shape[2:]))
    return x[(slice(None), slice(None), *places)].float().flatten(2)


def sampling(sizes: Sequence[int]) -> list[int]:
    """Return the step with which ``sampled`` takes positions along each side of a feature map."""
    most = _POSITIONS if len(sizes) > 1 else _POSITIONS**2
    return [-(-size // most) for size in sizes]


def image_moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and variance (images x C) over each image's positions (images x C x positions)."""
    means = rows.mean(2)
    if rows.shape[2] == 1:
        return means, torch.zeros_like(means)
    squares = torch.linalg.vector_norm(rows, dim=2).square() / rows.shape[2]
    return means, (squares - means.square()).clamp(min=0)


def signatures(x: Tensor) -> Tensor:
    """Return what tells domains apart, per image: channel means and log standard deviations at a layer."""
    rows = sampled(x)
    means, variances = image_moments(rows)
    return means if rows.shape[2] == 1 else torch.cat([means, 0.5 * (variances + TINY).log()], 1)


@dataclass(frozen=True)
class Signature:
    """Where the source's images lie by the statistics of one layer.

    ``(s - mean) @ whitener`` has mean 0 and unit covariance over the source's images, in their k main directions.
    """

    mean: Tensor
    whitener: Tensor
    layer: str = ""  # the BatchNorm whose input they describe; '' = the first one

    @classmethod
    def of(cls, found: Tensor, layer: str = "") -> Signature:
        """Fit to the signatures (n x p) of source images.

        ``whitener = D^-1 V (E + r)^-1/2`` (p x k) with the standard deviations ``D``, the k largest eigenvalues ``E``
        of the correlations, their eigenvectors ``V``, and ``r = 1e-3``. Note: means and log standard deviations differ
        in units, hence the correlations; all in float64.
        """
        cov = torch.cov(found.cpu().double().T).reshape(found.shape[1], -1)
        scale = (cov.diagonal() + 1e-12).sqrt()
        values, vectors = torch.linalg.eigh(cov / torch.outer(scale, scale))
        values, vectors = values[-_DIRECTIONS:].clamp(min=0), vectors[:, -_DIRECTIONS:]
        whitener = vectors / scale[:, None] / (values + 1e-3).sqrt()
        return cls(found.mean(0), whitener.to(found), layer)

    @classmethod
    def guessed(cls, layer: _BatchNorm, size: int) -> Signature:
        """Guess from the running statistics of the first layer.

        Note: these do not show how much of a channel's variance lies between images. Typical values of natural images
        are used: a quarter, and a log deviation of -0.4 +- 0.4 within an image (relative to the channel's).
        """
        mean, var = layer.running_mean.float(), layer.running_var.float() + layer.eps
        if size == len(mean):
            return cls(mean, torch.diag(var.rsqrt()))
        spread = torch.cat([2 * var.rsqrt(), torch.full_like(var, 1 / 0.4)])
        return cls(torch.cat([mean, 0.5 * var.log() - 0.4]), torch.diag(spread))

    def coordinates(self, found: Tensor) -> Tensor:
        """Return signatures (n x p) in the whitened directions (n x k)."""
        return (found - self.mean) @ self.whitener

    def to(self, device: torch.device | str) -> Signature:
        """Return a copy on ``device``."""
        return Signature(self.mean.to(device), self.whitener.to(device), self.layer)


def feature_signatures(z: Tensor, basis: Tensor, mean: Tensor) -> Tensor:
    """Return what tells domains apart if no BatchNorm came before: coordinates, and the log deviation outside them."""
    rows = z.float().movedim(channel_place(z, len(basis)), -1).flatten(1, -2) if z.ndim > 2 else z.float()[:, None]
    centred = rows.mean(1) - mean
    coordinates = centred @ basis
    whole = centred.square().sum(1, keepdim=True)
    outside = (whole - coordinates.square().sum(1, keepdim=True)).clamp(min=TINY * whole.mean().item() + 1e-30)
    return torch.cat([coordinates, 0.5 * outside.log()], 1)


def matrix_power(matrix: Tensor, power: float) -> Tensor:
    """Return a power of a symmetric positive definite matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=TINY * float(values[-1].clamp(min=1e-30))).pow(power)) @ vectors.T


def with_ridge(cov: Tensor) -> Tensor:
    """Return ``C + r I`` with ``r`` proportional to the mean variance."""
    return cov + (_RIDGE * cov.diagonal().mean() + 1e-12) * torch.eye(len(cov), device=cov.device)


def recolouring(
    target: Moments, source_mean: Tensor, source_cov: Tensor, colour: Tensor, weight: float, n: float
) -> tuple[Tensor, Tensor]:
    """Return ``T`` and ``b`` of ``x -> x T + b``, which gives target features the source's moments.

    ``T = (V + r I)^-1/2 (C + r' I)^1/2``, whose second factor is ``colour``, and ``b = m_s - m T``. ``m`` and the
    variances in ``V`` are interpolated from the source's to the target's by ``weight``, the covariances by
    ``weight n / (n + 20)``; ``weight = 0`` is the identity.
    """
    cov = torch.lerp(source_cov, target.cov, weight * n / (n + _PAIRS))
    var = torch.lerp(source_cov.diagonal(), target.var, weight)
    scale = (var / cov.diagonal().clamp(min=1e-12)).sqrt()
    cov = cov * scale[:, None] * scale
    mean = torch.lerp(source_mean, target.mean, weight)
    linear = matrix_power(with_ridge(cov), -0.5) @ colour
    return linear, source_mean - mean @ linear


def shift_weight(target: Moments, mean: Tensor, var: Tensor, n: float, composition: float, scale: float) -> float:
    """Return the weight of the target's moments at a layer, in [0, 1): ``w = max(0, D - N - K) / (D + scale)``.

    ``D`` is the divergence of the target's means and variances from the source's, ``N`` the part expected by chance
    from ``n`` images, and ``K`` (``composition``) the part explained by class frequencies unlike the source's.
    """
    found = target.var + TINY * var
    distance = divergence((target.mean - mean).square(), (found - var).square(), found, var)
    noise = divergence(target.mean_noise / max(n - 1, 1), target.var_noise / max(n - 1, 1), found, var)
    weight = (distance - noise - composition).clamp(min=0) / (distance + scale)
    return float(weight)


def projected(z: Tensor, basis: Tensor, mean: Tensor, phi: Tensor | None = None) -> Tensor:
    """Return ``m_s + (z - m_s) W_s Phi W_s^T`` of features in any layout; ``basis`` is ``W_s``, ``mean`` is ``m_s``.

    Without ``phi`` this is ``Phi* = W_t^T W_s`` for a target that spans the whole space, ``W_t = I``: it removes the
    directions in which the source does not vary, on which the layers behind were never trained.
    """
    place = channel_place(z, len(basis))
    basis, mean = basis.to(z.dtype), mean.to(z.dtype)
    coordinates = (z.movedim(place, -1) - mean) @ basis
    coordinates = coordinates if phi is None else coordinates @ phi.to(z.dtype)
    return (mean + coordinates @ basis.T).movedim(-1, place)
