"""Telling one cluster from several: a mixture of two normal distributions against a single one, and k-means."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_DIRECTIONS = 16  # most main directions used
_RIDGE = 0.1  # variance added in each of them
_ROUNDS, _STARTS = 20, 4


def k_means(rows: Tensor, k: int, seed: int = 0) -> Tensor:
    """Return the cluster of each row: Lloyd's algorithm from k-means++, the best of three runs."""
    generator, best = torch.Generator().manual_seed(seed), (math.inf, torch.zeros(len(rows), dtype=torch.long))
    for _ in range(3):
        centres = rows[torch.randint(len(rows), (1,), generator=generator)]
        while len(centres) < k:
            squares = torch.cdist(rows, centres).square().min(1).values.double().cpu()
            chosen = torch.multinomial(squares + 1e-12, 1, generator=generator)
            centres = torch.cat([centres, rows[chosen]])
        for _ in range(_ROUNDS):
            nearest = torch.cdist(rows, centres).min(1)
            members = F.one_hot(nearest.indices, k).to(rows)
            counts = members.sum(0)[:, None]
            centres = torch.where(counts > 0, members.T @ rows / counts.clamp_min(1), centres)
        best = min(best, (float(nearest.values.square().sum()), nearest.indices), key=lambda found: found[0])
    return best[1]


def drift(rows: Tensor, size: int) -> float:
    """Return how much more the means of successive blocks of ``size`` rows vary than by chance: 1 for a fixed mixture.

    ``sum_j var_b(m_bj) / (sum_j var_i(x_ij) / size)`` over coordinates j, blocks b and rows i.
    """
    means = rows.unflatten(0, (-1, size)).mean(1)
    return float(size * means.var(0).sum() / rows.var(0).sum())


def gain_of_two(rows: Tensor, seed: int = 0) -> float:
    """Return how much likelier a held-out row is under two modes than under one (nats).

    Each model has a single covariance: ``log(pi_0 N(x; m_0, S) + pi_1 N(x; m_1, S)) - log N(x; m, S')``, fitted to
    half of the rows and averaged over the other half, and vice versa.
    """
    centred = rows.double() - rows.double().mean(0)
    basis = torch.linalg.svd(centred, full_matrices=False).Vh[:_DIRECTIONS]
    x = centred @ basis.T
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
    halves = order.tensor_split(2)
    return 0.5 * sum(
        (_log_density(x[other], *_fit(x[half], 2)) - _log_density(x[other], *_fit(x[half], 1))).mean().item()
        for half, other in (halves, halves[::-1])
    )


def _fit(x: Tensor, modes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Fit the modes' fractions, means and common covariance by expectation maximisation.

    Two modes start from the two sides of each of the first main directions; the likeliest fit is returned.
    """
    if modes == 1:
        return _moments(x, torch.ones_like(x[:, :1]))
    found = []
    for direction in torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh[:_STARTS]:
        shares = F.one_hot(((x - x.mean(0)) @ direction > 0).long(), 2).to(x)
        for _ in range(_ROUNDS):
            model = _moments(x, shares)
            shares = _joint(x, *model).softmax(1)
        found.append(model)
    return max(found, key=lambda model: _log_density(x, *model).sum().item())


def _moments(x: Tensor, shares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    counts = shares.sum(0) + 1e-6
    means = shares.T @ x / counts[:, None]
    centred = (x.T @ x - (counts[:, None] * means).T @ means) / len(x)
    return counts / counts.sum(), means, centred + _RIDGE * torch.eye(x.shape[1]).to(x)


def _joint(x: Tensor, parts: Tensor, means: Tensor, covariance: Tensor) -> Tensor:
    """Return ``log(pi_k N(x; m_k, S))`` (n x K)."""
    factor = torch.linalg.cholesky(covariance)
    scaled = torch.linalg.solve_triangular(factor, (x[:, None] - means).flatten(0, 1).T, upper=False)
    squares = scaled.square().sum(0).view(len(x), len(means))
    return parts.log() - 0.5 * squares - factor.diagonal().log().sum() - 0.5 * x.shape[1] * math.log(2 * math.pi)


def _log_density(x: Tensor, parts: Tensor, means: Tensor, covariance: Tensor) -> Tensor:
    return _joint(x, parts, means, covariance).logsumexp(1)
