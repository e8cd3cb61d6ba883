"""Paired comparisons of the methods on the same images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tta_cattan.bench.report.comparison import Comparison
from tta_cattan.bench.report.reading import Variant


@dataclass(frozen=True)
class Difference:
    """A mean difference in accuracy of two methods, first minus second, and its confidence interval."""

    mean: float
    low: float
    high: float
    images: int
    squares: int  # combinations of domain and seed that both have
    p_value: float | None = None  # McNemar's mid-p, if there is one square

    @property
    def outcome(self) -> str:
        """``won``, ``lost``, or ``open`` if the interval contains 0."""
        return "won" if self.low > 0 else "lost" if self.high < 0 else "open"

    @property
    def text(self) -> str:
        """``+0.8 [0.3, 1.3]`` in points."""
        digits = 1 if self.high - self.low > 0.01 else 2
        return f"{_points(self.mean, digits, '+')} [{_points(self.low, digits)},\u00a0{_points(self.high, digits)}]"

    def reversed(self) -> Difference:
        """Return the same comparison, second minus first."""
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low)


# By the names of two methods.
Differences = Mapping[tuple[str, str], Difference]


def compare_all(comparison: Comparison) -> Differences:
    """Compare every ordered pair of methods that have predictions on common images.

    Note: the level is Bonferroni-corrected, so that all intervals hold simultaneously at 95 %.
    """
    variants = comparison.variants
    common = {(a, b): _differences(variants[a], variants[b]) for a, b in combinations(variants, 2)}
    common = {names: groups for names, groups in common.items() if groups}
    pairs = {}
    for (first, second), groups in common.items():
        found = paired_difference(groups, 1 - 0.05 / len(common))
        images, difference = groups[0]
        if len(groups) == 1 and found.images == len(images):  # a stream shows an image in every domain
            found = replace(found, p_value=mcnemar(int((difference > 0).sum()), int((difference < 0).sum())))
        pairs[first, second], pairs[second, first] = found, found.reversed()
    return pairs


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the mid-p two-sided p-value of McNemar's test.

    Of the ``n = b + c`` images that only one method gets right, ``b ~ Binomial(n, 1/2)`` if neither is better:
    ``p = 2 P(X <= min(b, c)) - P(X = min(b, c))``; the observed outcome counts half.
    """
    from scipy.stats import binom

    n, fewer = only_first + only_second, min(only_first, only_second)
    seen = float(binom.pmf(fewer, n, 0.5))
    if only_first == only_second:  # both tails contain the observed outcome
        return 1.0 - seen / 2 if n else 1.0
    return 2 * float(binom.cdf(fewer, n, 0.5)) - seen


def paired_difference(
    groups: Sequence[tuple[NDArray[np.integer], NDArray[np.number]]], level: float = 0.95
) -> Difference:
    """Return the mean over groups of the mean difference in each, with a cluster-robust Wald interval.

    A group is (image, difference) of one domain and seed, difference = [first right] - [second right] in {-1, 0, 1}.
    ``var = sum_i (sum_g (d_gi - mean_g) / (n_g G))^2`` times ``n / (n - 1)``: one image in many groups, under 15
    corruptions or 3 seeds, is one independent observation.
    """
    means = [float(np.mean(difference)) for _, difference in groups]
    images, place = np.unique(np.concatenate([image for image, _ in groups]), return_inverse=True)
    shares = [(d - mean) / (len(d) * len(groups)) for (_, d), mean in zip(groups, means, strict=True)]
    influence = np.bincount(place, np.concatenate(shares), minlength=len(images))
    n = len(images)
    error = math.sqrt(float(np.square(influence).sum()) * n / (n - 1)) if n > 1 else math.inf
    mean, reach = sum(means) / len(means), NormalDist().inv_cdf((1 + level) / 2) * error
    return Difference(mean, mean - reach, mean + reach, n, len(groups))


def _differences(one: Variant, other: Variant) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return (image, difference) for each square on which both have the same images and labels."""
    groups = []
    for square, mine in one.predictions.items():
        theirs = other.predictions.get(square)
        if theirs is None or any(not np.array_equal(mine[name], theirs[name]) for name in ("index", "label")):
            continue
        right = (mine["prediction"] == mine["label"]).astype(np.int8)
        groups.append((mine["index"], right - (theirs["prediction"] == theirs["label"]).astype(np.int8)))
    return groups


def _points(value: float, digits: int, sign: str = "") -> str:
    """Return a difference of fractions in percentage points, with a true minus sign."""
    text = f"{100 * value:{sign}.{digits}f}"
    return text.replace("-", "−") if float(text) else f"{0:.{digits}f}"
