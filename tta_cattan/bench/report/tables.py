"""The tables of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tta_cattan.bench.report.comparison import Comparison
from tta_cattan.bench.report.pairs import Pair, pairs_table
from tta_cattan.bench.report.words import number_range, plural
from tta_cattan.bench.results.layout import Entry, Table
from tta_cattan.bench.results.tables import METRIC_TITLES, average_column, metric_table

_OVERVIEW = ("accuracy", "ece", "nll", "brier", "images_per_second", "peak_memory", "extra_bytes")
_ELSEWHERE = ("n", "seconds")  # among the facts, and as images per second


@dataclass(frozen=True)
class Shown:
    """A table with the name of its files, its title and what one should know to read it."""

    name: str
    title: str
    caption: str
    table: Table


def tables_of(comparison: Comparison, pairs: Mapping[tuple[str, str], Pair]) -> dict[str, Shown]:
    """Return the tables for which the comparison has contents, by their kind."""
    found = {
        "overview": _overview(comparison),
        "pairs": _pairs(comparison, pairs),
        "domains": Shown("by-domain", "Accuracy by domain (%)", "Mean over seeds.", metric_table(comparison.summary)),
        "configs": _configs(comparison),
    }
    return {kind: shown for kind, shown in found.items() if shown is not None}


def _overview(comparison: Comparison) -> Shown:
    """Return every method's averages, of accuracy, calibration and cost."""
    summary = comparison.summary
    metrics = [*_OVERVIEW, *(m for m in summary.metrics if m not in (*_OVERVIEW, *_ELSEWHERE))]
    shown = [m for m in metrics if any((method, m) in summary.averages for method in summary.methods)]
    columns = [[Entry(method) for method in summary.methods], *(average_column(summary, m) for m in shown)]
    note = "Mean over the domains ± standard deviation over seeds. Best in bold, second best underlined."
    if not summary.complete:
        note += f" Incomplete (cells missing: {summary.missing}): an average needs a seed that has every domain."
    table = Table(["method", *(METRIC_TITLES.get(m, m) for m in shown)], list(zip(*columns, strict=True)))
    return Shown("summary", "Summary", note, table)


def _pairs(comparison: Comparison, pairs: Mapping[tuple[str, str], Pair]) -> Shown | None:
    """Return the matrix of differences."""
    if not pairs:
        return None
    squares = sorted({pair.squares for pair in pairs.values()})
    images = sorted({pair.difference.n for pair in pairs.values()})
    level = (
        "with its 95 % interval"
        if len(pairs) == 2
        else f"with intervals that hold for all {len(pairs) // 2} pairs at 95 %"
    )
    caption = (
        f"Accuracy of the row minus that of the column in points, {level}, on the same {number_range(images)} images "
        f"under {number_range(squares)} {plural('combination', squares[-1])} of domain and seed; an image counts once "
        "however often it was seen. Bold: the interval leaves 0 out, so the row has won, on such images and with these "
        "seeds."
    )
    p_values = [pair.p_value for pair in pairs.values() if pair.p_value is not None]
    if p_values:
        caption += f" Smallest mid-p of McNemar's test, of a single pair: {min(p_values):.2g}."
    return Shown("paired", "Is the difference real?", caption, pairs_table(list(comparison.variants), pairs))


def _configs(comparison: Comparison) -> Shown | None:
    """Return the settings in which the methods differ."""
    differences = comparison.config_differences()
    if not differences:
        return None
    rows = [[Entry(key), *map(Entry, values)] for key, values in differences.items()]
    return Shown("config-differences", "Settings that differ", "", Table(["key", *comparison.variants], rows))
