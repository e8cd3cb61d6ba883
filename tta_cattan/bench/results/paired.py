"""Paired comparison of two methods on the same images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tta_cattan.util.errors import UserError


@dataclass(frozen=True)
class Difference:
    """A mean difference in accuracy, its confidence interval, and the number of images."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def decided(self) -> bool:
        """Whether the interval excludes 0; otherwise neither method has won."""
        return self.low > 0 or self.high < 0


def mcnemar(only_first: int, only_second: int) -> tuple[float, float]:
    """Return the exact and the mid-p two-sided p-value of McNemar's test.

    Of the ``n = b + c`` images that only one method has right, ``b ~ Binomial(n, 1/2)`` if neither is better:
    ``p = 2 P(X <= min(b, c))``, at most 1; the mid-p counts the observed outcome by half, and so is less conservative.
    """
    from scipy.stats import binom

    n, fewer = only_first + only_second, min(only_first, only_second)
    if fewer < 0:
        raise UserError(f"McNemar's test of {only_first} and {only_second} images: counts cannot be negative")
    if not n:
        return 1.0, 1.0
    seen = float(binom.pmf(fewer, n, 0.5))
    if only_first == only_second:  # both tails contain the observed outcome
        return 1.0, 1.0 - seen / 2
    tails = 2 * float(binom.cdf(fewer, n, 0.5))
    return tails, tails - seen


def paired_difference(
    groups: Sequence[tuple[NDArray[np.integer], NDArray[np.number]]], level: float = 0.95
) -> Difference:
    """Return the mean over groups of the mean difference in each, with a cluster-robust Wald interval.

    A group is (image, difference) of one domain and seed, difference = [first right] - [second right] in {-1, 0, 1}.
    ``var = sum_i (sum_g (d_gi - mean_g) / (n_g G))^2`` times ``n / (n - 1)``: one image in many groups, under 15
    corruptions or 3 seeds, is one independent observation.
    """
    if not groups:
        raise UserError("no images are common to the two methods: there is nothing to compare")
    means = [float(np.mean(difference)) for _, difference in groups]
    images, place = np.unique(np.concatenate([image for image, _ in groups]), return_inverse=True)
    shares = [(d - mean) / (len(d) * len(groups)) for (_, d), mean in zip(groups, means, strict=True)]
    influence = np.bincount(place, np.concatenate(shares), minlength=len(images))
    n = len(images)
    error = math.sqrt(float(np.square(influence).sum()) * n / (n - 1)) if n > 1 else math.inf
    mean, reach = sum(means) / len(means), NormalDist().inv_cdf((1 + level) / 2) * error
    return Difference(mean, mean - reach, mean + reach, n)
