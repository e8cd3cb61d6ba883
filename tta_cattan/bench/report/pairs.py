"""Each two methods of a comparison on the same images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tta_cattan.bench.report.comparison import Comparison
from tta_cattan.bench.report.reading import Variant
from tta_cattan.bench.results.layout import Entry, Table
from tta_cattan.bench.results.paired import Difference, mcnemar, paired_difference


@dataclass(frozen=True)
class Pair:
    """How much more often the first method is right than the second."""

    first: str
    second: str
    difference: Difference
    squares: int  # domains x seeds that both have
    p_value: float | None  # McNemar's mid-p, where there is one square

    @property
    def text(self) -> str:
        """``+0.8 [0.3, 1.3]`` in points."""
        found = self.difference
        digits = 1 if found.high - found.low > 0.01 else 2
        return f"{_points(found.mean, digits, '+')} [{_points(found.low, digits)},\u00a0{_points(found.high, digits)}]"

    def reversed(self) -> Pair:
        """Return the same comparison seen from the second method."""
        found = self.difference
        turned = Difference(-found.mean, -found.high, -found.low, found.n)
        return Pair(self.second, self.first, turned, self.squares, self.p_value)


def compare_all(comparison: Comparison) -> dict[tuple[str, str], Pair]:
    """Return every ordered pair of methods whose predictions are known on common images.

    Note: the level of the intervals is Bonferroni's, so that with 95 % all of them hold at once.
    """
    variants = comparison.variants
    common = {(a, b): _differences(variants[a], variants[b]) for a, b in combinations(variants, 2)}
    common = {names: groups for names, groups in common.items() if groups}
    pairs = {}
    for (first, second), groups in common.items():
        p_value = None
        if len(groups) == 1:
            difference = groups[0][1]
            p_value = mcnemar(int((difference > 0).sum()), int((difference < 0).sum()))[1]
        found = paired_difference(groups, 1 - 0.05 / len(common))
        pair = Pair(first, second, found, len(groups), p_value)
        pairs[first, second], pairs[second, first] = pair, pair.reversed()
    return pairs


def pairs_table(names: Sequence[str], pairs: Mapping[tuple[str, str], Pair]) -> Table:
    """Return the matrix: the row's accuracy minus the column's; decided differences are marked as the best are."""
    rows = []
    for first in names:
        row = [Entry(first)]
        for second in names:
            pair = pairs.get((first, second))
            won = pair is not None and pair.difference.decided and pair.difference.mean > 0
            text = "" if first == second else "-"
            row.append(Entry(pair.text, pair.difference.mean, "best" if won else "") if pair else Entry(text))
        rows.append(row)
    return Table(["row − column", *names], rows)


def _differences(one: Variant, other: Variant) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return (image, difference) for each square on which both saw the same images with the same labels."""
    groups = []
    for square, mine in one.predictions.items():
        theirs = other.predictions.get(square)
        if theirs is None or any(not np.array_equal(mine[name], theirs[name]) for name in ("index", "label")):
            continue
        right = (mine["prediction"] == mine["label"]).astype(np.int8)
        groups.append((mine["index"], right - (theirs["prediction"] == theirs["label"]).astype(np.int8)))
    return groups


def _points(value: float, digits: int, sign: str = "") -> str:
    """Return a difference of fractions in points, with a true minus sign."""
    text = f"{100 * value:{sign}.{digits}f}"
    return text.replace("-", "−") if float(text) else f"{0:.{digits}f}"
