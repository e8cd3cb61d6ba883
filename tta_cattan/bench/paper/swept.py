"""A figure of the paper over a swept key: average accuracy against the setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tta_cattan.bench.paper.gather import Gathered
from tta_cattan.bench.paper.grid import Difference, Grid, Row
from tta_cattan.bench.paper.presentation import Presentation, percent
from tta_cattan.bench.paper.study import Study
from tta_cattan.bench.report.figures import Curve, bars, lines
from tta_cattan.bench.results.published import published
from tta_cattan.bench.results.summary import Statistic
from tta_cattan.bench.results.tables import METHOD_NAMES
from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def present_sweep(study: Study, gathered: Gathered, same_data: bool) -> Presentation:
    """Return the average accuracy and ECE of each method at each setting, and published averages where there are any.

    Note: a method that does not read the key has one line.
    """
    keys = list(dict.fromkeys(key for row in gathered.rows for key, _ in row.changes))
    if len(keys) != 1:
        raise UserError(f"{study.name} is a figure over one key, and {', '.join(keys)} are swept: give one --sweep")
    averages = gathered.summary.averages
    rows: list[Row] = []
    curves: dict[str, dict[Any, Statistic]] = {}
    levels: dict[str, Statistic] = {}
    for row in gathered.rows:
        name, setting = METHOD_NAMES.get(row.method, row.method), dict(row.changes).get(keys[0])
        found = averages.get((row.label, "accuracy"))
        if found is None:
            continue
        if row.changes:
            curves.setdefault(name, {})[setting] = found
        else:
            levels[name] = found
        ours, theirs = percent(found), _published(study, row.method, setting)
        difference = Difference(100 * found.mean - theirs) if theirs is not None and same_data else None
        shown = "-" if setting is None else str(setting)
        rows.append((shown, name, ours, percent(averages.get((row.label, "ece"))), theirs, difference))
    heads: tuple[str, ...] = (keys[0], "method", "accuracy", "ECE", "published", "difference")
    if not study.published:
        heads, rows = heads[:4], [row[:4] for row in rows]
    domains = gathered.summary.domains
    place = f"Mean over {len(domains)} domains" if len(domains) > 1 else f"Accuracy on {domains[0].name}"
    grid = Grid(f"{place} in %; ECE as 100 times the fraction", heads, tuple(rows))
    said = (f"The paper: {study.says}",) if study.says else ()
    return Presentation((grid,), {"": _figure(keys[0], curves, levels)}, said)


def _published(study: Study, method: str, setting: Any) -> float | None:
    """Return the published average of a method at a setting."""
    name = study.published.get("" if setting is None else str(setting), study.published.get(""))
    table = published(name) if name else None
    line = table.rows.get(method) if table else None
    return None if line is None else line.average


def _figure(key: str, curves: dict[str, dict[Any, Statistic]], levels: dict[str, Statistic]) -> Figure:
    """Draw lines over numbers, bars over words."""
    settings = list(dict.fromkeys(setting for points in curves.values() for setting in points))
    if all(isinstance(setting, (int, float)) and not isinstance(setting, bool) for setting in settings):
        drawn = {name: _curve(points) for name, points in curves.items()}
        wide = min(settings) > 0 and max(settings) >= 16 * min(settings)
        level = {name: 100 * found.mean for name, found in levels.items()}
        return lines(drawn, key, "accuracy (%)", log_x=wide, level=level)
    points = {**curves, **{name: dict.fromkeys(settings, found) for name, found in levels.items()}}
    series = {name: [100 * by[s].mean if s in by else None for s in settings] for name, by in points.items()}
    return bars([str(setting) for setting in settings], series, "accuracy (%)")


def _curve(points: dict[Any, Statistic]) -> Curve:
    x = sorted(points)
    std = [100 * value for setting in x if (value := points[setting].std) is not None]
    band = std if len(std) == len(x) else None
    return Curve(x, [100 * points[setting].mean for setting in x], band)
