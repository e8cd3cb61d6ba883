"""How time and memory grow when n, D, d, the classes and the batch double, against what the maths says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import nn

from benchmarks.speed.subjects import aligned
from benchmarks.speed.subspace_fit import features
from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, interleaved, peak_memory
from tta_cattan.alignment import fit_subspace

_SLACK = 0.15  # of a fitted exponent: a few points on a real machine

# A step costs O(B (D d + d^2 + d C)); a fit O(n D^2 + D^3), in memory O(D^2).
STEP = {"D": 1, "d": 2, "classes": 1, "batch": 1}
FIT = {"n": 1, "D": 3}
STEP_MEMORY = {"D": 1, "d": 2, "classes": 1, "batch": 1}
FIT_MEMORY = {"n": 0, "D": 2}


def exponent(sizes: list[int], values: list[float]) -> float:
    """Return the slope of the straight line through the logarithms (least squares)."""
    x, y = [math.log(size) for size in sizes], [math.log(max(value, 1e-12)) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def step_of(dim: int, d: int, classes: int, batch: int) -> Callable[[], object]:
    """Return an update of CATTAn on features."""
    torch.manual_seed(0)
    method = aligned(nn.Sequential(nn.BatchNorm1d(dim), nn.Linear(dim, classes)), dim, d)
    x = torch.randn(batch, dim)
    return lambda: method(x)


def fit_of(n: int, dim: int) -> Callable[[], object]:
    """Return a fit of a quarter of the directions, to batches that are made on the way."""
    rows = features(min(n, 256), dim)
    return lambda: fit_subspace((rows for _ in range(n // len(rows))), dim // 4)


def measure(tiny: bool = False) -> list[Line]:
    """Double one size at a time and fit the exponents; the goal of each is what the maths says, and some slack."""
    base_step = {"dim": 16, "d": 4, "classes": 4, "batch": 4} if tiny else _FULL_STEP
    base_fit = {"n": 64, "dim": 8} if tiny else _FULL_FIT
    doublings = 2 if tiny else 4
    lines = []
    for what, build, base, time_limits, memory_limits, calls in (
        ("step on features", step_of, base_step, STEP, STEP_MEMORY, 3),
        ("subspace fit", fit_of, base_fit, FIT, FIT_MEMORY, 1),
    ):
        for key in list(time_limits)[: 1 if tiny else None]:
            name = "dim" if key == "D" else key
            sizes = [base[name] * 2**power for power in range(doublings)]
            works = {str(size): build(**{**base, name: size}) for size in sizes}
            for kind, limits, values in (
                ("time", time_limits, _times(works, 1 if tiny else 3, 1 if tiny else calls)),
                ("memory", memory_limits, [peak_memory(work) + 2**20 for work in works.values()]),
            ):
                found, limit = exponent(sizes, values), limits[key]
                growth = f"{sizes[0]}..{sizes[-1]}"
                goal = f"<= {limit + _SLACK}"
                lines.append(
                    Line(f"growth of {what}: {kind} in {key}", f"O({key}^{limit})", f"{found:.2f}", growth, found, goal)
                )
    return lines


_FULL_STEP = {"dim": 1024, "d": 128, "classes": 250, "batch": 64}
_FULL_FIT = {"n": 4096, "dim": 256}


def _times(works: Mapping[str, Callable[[], object]], rounds: int, calls: int) -> list[float]:
    """Return the least time of each: what disturbs only ever adds."""
    measured = interleaved(works, rounds, calls=calls)
    return [min(measured.seconds[name]) for name in works]


if __name__ == "__main__":
    print_lines(measure())
