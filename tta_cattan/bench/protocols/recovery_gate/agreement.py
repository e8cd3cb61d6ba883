"""How far the hypotheses agree about a sample: pure functions on their predictions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tta_cattan.util.errors import UserError


def agreement(probabilities: Tensor) -> Tensor:
    """``qbar(x) = 1/K sum_k [argmax mean_{j != k} p_j(x) = argmax p_k(x)]`` for K x n x C probabilities.

    Note: a sample for which any hypothesis gives NaN has no agreement at all.
    """
    n_hypotheses = len(probabilities)
    if n_hypotheses < 2:
        raise UserError(f"RECOVERY.K = {n_hypotheses}: one hypothesis has nobody to agree with; give at least 2")
    # The others' mean itself, not the sum minus one's own: a tie must not be decided by rounding.
    others = [torch.cat([probabilities[:k], probabilities[k + 1 :]]).mean(0) for k in range(n_hypotheses)]
    agreed = torch.stack(others).argmax(2) == probabilities.argmax(2)
    finite = torch.isfinite(probabilities).all(2).all(0)
    return (agreed & finite).float().mean(0)


def least_confident(confidence: Tensor, fraction: float) -> Tensor:
    """Return the places of the ``ceil(fraction n)`` lowest of n confidences; the earlier of two equal ones first.

    Note: no confidence (NaN) counts as the lowest.
    """
    return confidence.nan_to_num(nan=-1.0).argsort(stable=True)[: count_of(fraction, len(confidence))]


def count_of(fraction: float, n: int) -> int:
    """Return ``ceil(fraction n)``, at least 1."""
    return max(math.ceil(fraction * n - 1e-9), 1)  # 2/3 of 9 is 6, whatever the float's last digit says
