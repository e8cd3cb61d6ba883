"""Paired comparisons of the methods on the same images."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tta_cattan.bench.report.comparison import Comparison
from tta_cattan.bench.report.reading import Variant
from tta_cattan.bench.results.paired import Difference, mcnemar, paired_difference


@dataclass(frozen=True)
class Pair:
    """The difference in accuracy of two methods, first minus second."""

    first: str
    second: str
    difference: Difference
    squares: int  # combinations of domain and seed that both have
    p_value: float | None  # McNemar's mid-p, if there is one square

    @property
    def text(self) -> str:
        """``+0.8 [0.3, 1.3]`` in points."""
        found = self.difference
        digits = 1 if found.high - found.low > 0.01 else 2
        return f"{_points(found.mean, digits, '+')} [{_points(found.low, digits)},\u00a0{_points(found.high, digits)}]"

    def reversed(self) -> Pair:
        """Return the same comparison, second minus first."""
        found = self.difference
        turned = Difference(-found.mean, -found.high, -found.low, found.n)
        return Pair(self.second, self.first, turned, self.squares, self.p_value)


def compare_all(comparison: Comparison) -> dict[tuple[str, str], Pair]:
    """Return every ordered pair of methods that have predictions on common images.

    Note: the level is Bonferroni-corrected: with 95 % all intervals hold at once.
    """
    variants = comparison.variants
    common = {(a, b): _differences(variants[a], variants[b]) for a, b in combinations(variants, 2)}
    common = {names: groups for names, groups in common.items() if groups}
    pairs = {}
    for (first, second), groups in common.items():
        p_value = None
        images, difference = groups[0]
        if len(groups) == 1 and len(np.unique(images)) == len(images):  # a stream shows an image in every domain
            p_value = mcnemar(int((difference > 0).sum()), int((difference < 0).sum()))[1]
        found = paired_difference(groups, 1 - 0.05 / len(common))
        pair = Pair(first, second, found, len(groups), p_value)
        pairs[first, second], pairs[second, first] = pair, pair.reversed()
    return pairs


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
