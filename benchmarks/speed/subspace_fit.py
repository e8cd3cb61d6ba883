"""The subspace fit against scikit-learn's solvers, and against one matrix product and one ``eigh``, the limit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from torch import Tensor

from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, Rounds, interleaved, peak_memory, show_bytes
from tta_cattan.alignment import fit_subspace

LIMIT = "one GEMM + eigh"
QUICK = {"sklearn PCA covariance_eigh": lambda d: PCA(d, svd_solver="covariance_eigh")}
# One round each: they are slower by far, and a second opinion on that costs minutes.
ONCE = {
    "sklearn PCA randomized": lambda d: PCA(d, svd_solver="randomized", random_state=0),
    "sklearn TruncatedSVD randomized": lambda d: TruncatedSVD(d, random_state=0),
}
SLOW = {
    "sklearn PCA full": lambda d: PCA(d, svd_solver="full"),
    "sklearn PCA arpack": lambda d: PCA(d, svd_solver="arpack"),
    "sklearn TruncatedSVD arpack": lambda d: TruncatedSVD(d, algorithm="arpack"),
    "sklearn IncrementalPCA": lambda d: IncrementalPCA(d),
}


def features(n: int, dim: int) -> Tensor:
    """Return float32 features with a falling spectrum around a common mean."""
    generator = torch.Generator().manual_seed(0)
    scales = torch.linspace(2, 0.1, dim)
    return torch.randn(n, dim, generator=generator).mul_(scales).add_(0.5)


def measure(tiny: bool = False, slow: bool = False) -> list[Line]:
    """Time the fit of d directions; the solvers that need minutes have a smaller size, unless ``slow``."""
    n, dim, d = (400, 32, 8) if tiny else (50_000, 2048, 800)
    z = features(n, dim)
    array = z.numpy()

    def limit() -> None:
        torch.linalg.eigh((z.T @ z).double())

    sides: dict[str, Callable[[], object]] = {"ours": lambda: fit_subspace(z, d), LIMIT: limit}
    sides |= _fits(QUICK, array, d)
    rounds = interleaved(sides, rounds=1 if tiny else 5, warmups=0 if tiny else 1)
    _check(array, d)
    what = f"subspace fit, {n:,} x {dim}, d = {d}"
    lines = [rounds.line(what, "ours", LIMIT, "<= 1.3")]
    lines += [rounds.line(what, "ours", name, "<= 1") for name in QUICK]
    once = interleaved(_fits({**ONCE, **(SLOW if slow else {})}, array, d), 1, warmups=0)
    single = Rounds({**once.seconds, "ours": [rounds.median("ours")]})
    lines += [single.line(what, "ours", name, "<= 1") for name in once.seconds]
    extra = peak_memory(lambda: fit_subspace(z, d))
    square = 8 * dim * dim
    lines.append(
        Line(f"{what}: peak extra memory", "D x D in float64", show_bytes(extra), show_bytes(square), extra / square)
    )
    return lines if slow else [*lines, *_against_the_slow(*((400, 32, 8) if tiny else (10_000, 1024, 400)))]


def _against_the_slow(n: int, dim: int, d: int) -> list[Line]:
    """Time the fit and the solvers that need minutes once, at a size of theirs."""
    z = features(n, dim)
    rounds = interleaved({"ours": lambda: fit_subspace(z, d), **_fits(SLOW, z.numpy(), d)}, 1, warmups=0)
    return [rounds.line(f"subspace fit, {n:,} x {dim}, d = {d}", "ours", name, "<= 1") for name in SLOW]


def _fits(makers: Mapping[str, Callable[[int], Any]], array: np.ndarray, d: int) -> dict[str, Callable[[], object]]:
    return {name: lambda make=make: make(d).fit(array) for name, make in makers.items()}


def _check(array: np.ndarray, d: int) -> None:
    """Both find the same variances."""
    ours = fit_subspace(torch.from_numpy(array), d).eigenvalues[:d].numpy()
    theirs = PCA(d, svd_solver="covariance_eigh").fit(array).explained_variance_
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)


if __name__ == "__main__":
    print_lines(measure(slow="--slow" in sys.argv))
