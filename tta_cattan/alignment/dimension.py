"""Choosing the dimension d of the subspaces by the stability rule."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tta_cattan.util.errors import UserError


def stability_bound(d: Tensor, n_target: int, delta: float = 0.1, epsilon: float = 1e6) -> Tensor:
    """Return ``(1 + sqrt(ln(2 / delta) / 2)) * 16 d^{3/2} / (epsilon sqrt(n_t))``."""
    return (1 + math.sqrt(math.log(2 / delta) / 2)) * 16 * d.double() ** 1.5 / (epsilon * math.sqrt(n_target))


def eigenvalue_gaps(eigenvalues: Tensor) -> Tensor:
    """Return ``e_d - e_{d+1}`` of descending eigenvalues, for d = 1, 2, ..."""
    return eigenvalues[:-1].double() - eigenvalues[1:].double()


def relative_spectrum(eigenvalues: Tensor) -> Tensor:
    """Return the eigenvalues divided by their mean, so that scaling the features does not change them."""
    return eigenvalues / eigenvalues.mean()


def select_dimension(
    source_eigenvalues: Tensor,
    target_eigenvalues: Tensor,
    n_target: int,
    delta: float = 0.1,
    epsilon: float = 1e6,
    relative: bool = False,
) -> int:
    """Return the largest d at which both gaps, the source's and the target's, are at least the stability bound.

    Note: gaps scale with the squared features and the bound does not, so scaling the features changes d. With
    ``relative``, each spectrum is divided by its mean first.
    """
    if relative:
        source_eigenvalues, target_eigenvalues = map(relative_spectrum, (source_eigenvalues, target_eigenvalues))
    if n_target < 1:
        raise UserError(f"n_target = {n_target}: the stability rule needs at least one target sample")
    n = min(len(source_eigenvalues), len(target_eigenvalues))
    if n < 2:
        raise UserError(f"the stability rule compares neighbouring eigenvalues, and only {n} is there: give CATTAN.D")
    gaps = torch.minimum(eigenvalue_gaps(source_eigenvalues[:n].cpu()), eigenvalue_gaps(target_eigenvalues[:n].cpu()))
    stable = (gaps >= stability_bound(torch.arange(1, n), n_target, delta, epsilon)).nonzero()
    if not len(stable):
        raise UserError(
            f"no d satisfies the stability rule with {n_target} target samples (epsilon = {epsilon:g}): "
            "set CATTAN.D, raise CATTAN.EPSILON, or give more target samples"
        )
    return int(stable[-1]) + 1


def stability_curve(
    source_eigenvalues: Tensor | None,
    target_eigenvalues: Tensor,
    n_target: int,
    delta: float = 0.1,
    epsilon: float = 1e6,
    relative: bool = False,
    most: int = 128,
) -> dict[str, list[float]]:
    """Return the curves that the rule compares: ``d``, and at each d ``target``, ``bound`` and, if given, ``source``.

    Note: if there are more than ``most`` values of d, at most ``most`` are kept, denser towards 1.
    """
    if relative:
        target_eigenvalues = relative_spectrum(target_eigenvalues)
        source_eigenvalues = None if source_eigenvalues is None else relative_spectrum(source_eigenvalues)
    n = len(target_eigenvalues) - 1
    if source_eigenvalues is not None:
        n = min(n, len(source_eigenvalues) - 1)
    d = torch.arange(1, n + 1)
    if n > most:
        d = torch.logspace(0, math.log10(n), most, dtype=torch.float64).round().long().unique()
    curve = {"d": d, "target": eigenvalue_gaps(target_eigenvalues.cpu())[d - 1]}
    if source_eigenvalues is not None:
        curve["source"] = eigenvalue_gaps(source_eigenvalues.cpu())[d - 1]
    curve["bound"] = stability_bound(d, n_target, delta, epsilon)
    return {name: [float(f"{value:.4g}") for value in values.tolist()] for name, values in curve.items()}
