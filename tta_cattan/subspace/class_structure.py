"""The classes in the target subspace: normal distributions of the target's own, found without labels."""

from __future__ import annotations

import torch
from torch import Tensor

_EMPTY = 1e-6  # samples: a class with fewer has no mean of its own


def class_discriminants(coordinates: Tensor, shares: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Return ``G = S^-1 M^T`` (d x C) and ``g = log pi - 1/2 diag(M S^-1 M^T)`` (C), one covariance for all classes.

    ``x G + g`` is ``log(pi_c N(x; m_c, S))`` up to what all classes share. ``pi`` are the classes' parts of all;
    ``M`` holds the means of ``coordinates`` (n x d) weighted by ``shares`` (n x C, each sample's sum to 1); ``S`` is
    their covariance around the means, ``shrinkage`` of it replaced by the same variance in every direction.
    """
    counts = shares.sum(0)
    means = shares.T @ coordinates / counts.clamp_min(_EMPTY)[:, None]
    scatter = coordinates.T @ coordinates - (counts[:, None] * means).T @ means
    covariance = scatter / len(coordinates)
    even = torch.eye(len(covariance)).to(covariance) * covariance.diagonal().mean().clamp_min(_EMPTY)
    weight = torch.linalg.solve(torch.lerp(covariance, even, shrinkage), means.T)
    parts = (counts / len(coordinates)).clamp_min(_EMPTY)
    return weight, parts.log() - 0.5 * (means * weight.T).sum(1)


def fit_class_structure(
    coordinates: Tensor, logits: Tensor, shrinkage: float = 0.3, doubt: float = 10.0, rounds: int = 10
) -> tuple[Tensor, Tensor, float]:
    """Return weight (d x C), offset (C) and temperature of ``t (y + x weight + offset)``, the logits by both opinions.

    The opinions are the network's, ``softmax(y)``, and the one of where the target's classes lie in its subspace: they
    are multiplied, the classes are found again by the product, ``rounds`` times (expectation maximisation, the network
    as the prior). The second counts ``rho = n / (n + doubt C)``: with few samples per class it says little. ``t`` keeps
    the mean confidence at the network's, because the d directions are not as independent as a normal distribution has
    it.
    """
    x, y = coordinates.double(), logits.double()
    centre = x.mean(0)
    x = x - centre
    rho = len(x) / (len(x) + doubt * y.shape[1])
    joint = y
    for _ in range(rounds):
        weight, offset = class_discriminants(x, joint.softmax(1), shrinkage)
        joint = y + rho * (x @ weight + offset)
    weight, offset = rho * weight, rho * offset
    temperature = matching_temperature(joint, y.softmax(1).amax(1).mean().item())
    return weight.to(logits), (offset - centre @ weight).to(logits), temperature


def matching_temperature(logits: Tensor, confidence: float) -> float:
    """Return the ``t`` in [1e-4, 1] at which the mean of ``max softmax(t y)`` is ``confidence``, or the nearest end."""
    low, high = 1e-4, 1.0
    if (high * logits).softmax(1).amax(1).mean().item() <= confidence:
        return high
    for _ in range(40):
        middle = (low * high) ** 0.5
        above = (middle * logits).softmax(1).amax(1).mean().item() > confidence
        low, high = (low, middle) if above else (middle, high)
    return (low * high) ** 0.5
