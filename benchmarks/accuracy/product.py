"""Many options at once: points drawn from their product, and what each option does on average over the others."""

from __future__ import annotations

import ast
import math
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tta_cattan.bench.run.plan import parse_sweeps


def draw(grid: Sequence[str], count: int, seed: int = 0) -> list[tuple[tuple[str, Any], ...]]:
    """Return ``count`` different points of the product of ``KEY=a,b,c``, every setting as often as the others.

    Each key's settings are dealt out like cards, so that ``count`` a multiple of their number has all equally often.
    """
    sweeps = parse_sweeps(grid)
    if count > math.prod(len(sweep.settings) for sweep in sweeps) / 2:
        raise ValueError(f"{count} points are more than half of the product of {', '.join(grid)}: run it all")
    rng = random.Random(seed)
    points: list[tuple[tuple[str, Any], ...]] = []
    while len(set(points)) < count:
        columns = []
        for sweep in sweeps:
            deck = list(sweep.settings) * math.ceil(count / len(sweep.settings))
            rng.shuffle(deck)
            columns.append([(sweep.key, _value(text)) for text in deck[:count]])
        points = list(zip(*columns, strict=True))
    return points


def main_effects(results: Sequence[tuple[tuple[tuple[str, Any], ...], float]]) -> str:
    """Return a table: the mean, its standard error and the best accuracy of the points at each setting of each key."""
    groups: dict[tuple[str, Any], list[float]] = defaultdict(list)
    for changes, accuracy in results:
        for change in changes:
            groups[change].append(100 * accuracy)
    keys = [key for key, _ in results[0][0]]
    lines = ["| key | setting | points | mean | best |", "|---|---|---:|---:|---:|"]
    for (key, value), found in sorted(groups.items(), key=lambda item: (keys.index(item[0][0]), str(item[0][1]))):
        mean = sum(found) / len(found)
        error = math.sqrt(sum((x - mean) ** 2 for x in found) / max(1, len(found) - 1) / len(found))
        lines.append(f"| {key} | {value} | {len(found)} | {mean:.1f} ± {error:.1f} | {max(found):.1f} |")
    return "\n".join(lines)


def _value(text: str) -> Any:
    """Return a number as a number, anything else as it is."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
