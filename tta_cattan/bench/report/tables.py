"""The tables of a comparison."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

from tta_cattan.bench.report.comparison import Comparison
from tta_cattan.bench.report.pairs import Differences
from tta_cattan.bench.report.reading import StreamFacts
from tta_cattan.bench.results.summary import shown_as
from tta_cattan.bench.results.table import MISSING, Entry, Table, mark_best, number_range
from tta_cattan.methods import method_title

_OVERVIEW = ("accuracy", "ece", "nll", "brier", "seconds", "peak_memory", "extra_bytes")
_ELSEWHERE = ("n", "images_per_second")  # shown among the facts, and as seconds


def tables_of(comparison: Comparison, pairs: Differences) -> dict[str, Table]:
    """Return the comparison's tables by kind; those without contents are left out."""
    tables = {"overview": _overview(comparison), "domains": _domains(comparison)}
    if pairs:
        tables["pairs"] = pairs_table(list(comparison.variants), pairs)
    if differences := comparison.config_differences():
        rows = [[Entry(key), *map(Entry, values)] for key, values in differences.items()]
        heads = ["key", *comparison.variants]
        tables["configs"] = Table(heads, rows, title="Settings that differ", name="config-differences")
    return tables


def _overview(comparison: Comparison) -> Table:
    """Return the averages of accuracy, calibration and cost of every method."""
    summary = comparison.summary
    metrics = [*_OVERVIEW, *(m for m in summary.metrics if m not in (*_OVERVIEW, *_ELSEWHERE))]
    shown = [m for m in metrics if any((method, m) in summary.averages for method in summary.methods)]
    columns = [list(map(Entry, summary.methods)), *(summary.average_column(m) for m in shown)]
    spread = " ± standard deviation over seeds" if _several_seeds(comparison) else ""
    caption = f"Mean over the domains{spread}. Best in bold, second best underlined."
    if not summary.complete:
        caption += f" Incomplete (results missing: {summary.missing}): an average needs a seed that has every domain."
    heads = ["method", *(shown_as(m).title for m in shown)]
    if times := _times_source(comparison):
        place = heads.index(shown_as("seconds").title) + 1
        heads.insert(place, "× Source")
        columns.insert(place, times)
        caption += " Seconds: all passes over one domain; × Source: as a multiple of the source model's."
    return Table(heads, list(zip(*columns, strict=True)), caption, "Summary", "summary")


def _times_source(comparison: Comparison) -> list[Entry]:
    """Return each method's time as a multiple of the source model's; an empty list if that is unknown."""
    averages = comparison.summary.averages
    base = averages.get((method_title("source"), "seconds"))
    if base is None or not base.mean:
        return []
    found = [averages.get((method, "seconds")) for method in comparison.summary.methods]
    return [_value(None if one is None else one.mean / base.mean, "{:.1f}".format) for one in found]


def _domains(comparison: Comparison) -> Table:
    """Return the accuracy on each domain; for streams, over all visits of each domain."""
    seeds = "Mean over seeds." if _several_seeds(comparison) else "One seed."
    if by_row := {name: _by_domain(streams) for name, streams in comparison.streams.items()}:
        domains = list(dict.fromkeys(domain for found in by_row.values() for domain in found))
        show, rows = shown_as("accuracy").show, comparison.summary.methods
        columns = [[_value(by_row.get(row, {}).get(domain), show) for row in rows] for domain in domains]
        marked = [mark_best(column, max, show) for column in columns]
        caption = f"Predictions made while adapting, all visits of a domain together. {seeds}"
        body = list(zip(map(Entry, rows), *marked, strict=True))
        return Table(["method", *domains], body, caption, "Accuracy by domain of the stream (%)", "by-domain")
    table = comparison.summary.table()
    return Table(table.heads, table.rows, seeds, "Accuracy by domain (%)", "by-domain")


def _by_domain(streams: Iterable[StreamFacts]) -> dict[str, float]:
    """Return the mean over streams of the accuracy on each domain that all of them have, all visits together."""
    first, *others = streams
    shared = [domain for domain in first.domains if all(domain in facts.domains for facts in others)]
    return {domain: statistics.fmean(facts.domains[domain] for facts in (first, *others)) for domain in shared}


def _several_seeds(comparison: Comparison) -> bool:
    return any(found.std is not None for found in comparison.summary.averages.values())


def _value(value: float | None, show: Callable[[float], str]) -> Entry:
    return Entry(MISSING) if value is None else Entry(show(value), value)


def pairs_table(names: list[str], pairs: Differences) -> Table:
    """Return the matrix of differences, the row's accuracy minus the column's, with the row's wins marked."""
    rows = [[Entry(first), *(_difference(first, second, pairs) for second in names)] for first in names]
    squares = sorted({pair.squares for pair in pairs.values()})
    images = {pair.images for pair in pairs.values()}
    level = (
        "with its 95 % interval"
        if len(pairs) == 2
        else f"with intervals that hold for all {len(pairs) // 2} pairs at 95 %"
    )
    caption = (
        f"Accuracy of the row minus that of the column in points, {level}, on the same {number_range(images)} images "
        f"under {number_range(squares)} {plural('combination', squares[-1])} of domain and seed; an image counts once "
        "however often it was seen. Bold: the interval excludes 0, so the row has won, on such images and with these "
        "seeds."
    )
    p_values = [pair.p_value for pair in pairs.values() if pair.p_value is not None]
    if p_values:
        caption += f" Smallest mid-p of McNemar's test, of a single pair: {min(p_values):.2g}."
    return Table(["row − column", *names], rows, caption, "Is the difference real?", "paired")


def _difference(first: str, second: str, pairs: Differences) -> Entry:
    pair = pairs.get((first, second))
    if pair is None:
        return Entry("" if first == second else MISSING)
    return Entry(pair.text, pair.mean, mark="best" if pair.outcome == "won" else "")


def plural(noun: str, number: int) -> str:
    """Return the noun in the form that follows the number."""
    return noun if number == 1 else f"{noun}s"
