"""A table of the paper: our accuracy beside the published one, column by column."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from tta_cattan.bench.paper.gather import Gathered
from tta_cattan.bench.paper.grid import Difference, Grid, Row, Spread
from tta_cattan.bench.paper.presentation import Presentation, percent
from tta_cattan.bench.paper.study import Study
from tta_cattan.bench.report.figures import bars
from tta_cattan.bench.results.published import PublishedRow, PublishedTable, published
from tta_cattan.bench.results.summary import Summary
from tta_cattan.bench.results.tables import METHOD_NAMES, domain_heads

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def present_table(study: Study, gathered: Gathered, same_data: bool) -> Presentation:
    """Return ours, the published row and, on the paper's own data, the difference of each method."""
    table = published(study.published[""]) if study.published else None
    summary = gathered.summary
    # A>C is Art>Clipart in one benchmark and amazon>caltech in another; a corruption is the same by its name.
    named_alike = not study.pairs or published(gathered.cfg.CORRUPTION.DATASET) is table
    heads = ("method", "", *domain_heads(summary), "avg", "ECE")
    rows: list[Row] = []
    for method in summary.methods:
        rows.append((METHOD_NAMES.get(method, method), "ours", *_ours(summary, method)))
        line = table.rows.get(method) if table else None
        if line is not None:
            theirs = _theirs(summary, line, named_alike)
            rows.append(("", "published", *theirs))
            if same_data:
                rows.append(("", "difference", *map(_difference, _ours(summary, method), theirs)))
    grid = Grid("Accuracy in %, the standard deviation over seeds; ECE as 100 times the fraction", heads, tuple(rows))
    return Presentation((grid,), {"": _figure(summary)}, _remarks(study, table))


def _ours(summary: Summary, method: str) -> list[Spread | None]:
    """Return a method's accuracy on each domain and on average, and its ECE."""
    cells = [percent(summary.cells.get((method, domain, "accuracy"))) for domain in summary.domains]
    return [*cells, *(percent(summary.averages.get((method, metric))) for metric in ("accuracy", "ece"))]


def _theirs(summary: Summary, line: PublishedRow, named_alike: bool) -> list[float | None]:
    """Return the published figures of the same columns; the average of a part of them is of that part, without ECE.

    Note: of a benchmark whose columns are others (``named_alike`` False) it has the printed average and ECE alone.
    """
    cells = [line.accuracy.get(domain.name) if named_alike else None for domain in summary.domains]
    shown = [value for value in cells if value is not None]
    if 0 < len(shown) < len(line.accuracy):
        return [*cells, fmean(shown), None]
    return [*cells, line.average, None if line.ece is None else 100 * line.ece]


def _difference(ours: Spread | None, theirs: float | None) -> Difference | None:
    return None if ours is None or theirs is None else Difference(ours.mean - theirs)


def _remarks(study: Study, table: PublishedTable | None) -> tuple[str, ...]:
    """Return what there is to know of the published table."""
    said = (f"The paper: {study.says}",) if study.says else ()
    return (*said, *(f"published: {remark}" for remark in (table.remarks if table else ())))


def _figure(summary: Summary) -> Figure:
    series, std = {}, {}
    for method in summary.methods:
        found = _ours(summary, method)[:-1]
        series[METHOD_NAMES.get(method, method)] = [None if one is None else one.mean for one in found]
        std[METHOD_NAMES.get(method, method)] = [None if one is None else one.std for one in found]
    return bars([*domain_heads(summary), "avg"], series, "accuracy (%)", std)
