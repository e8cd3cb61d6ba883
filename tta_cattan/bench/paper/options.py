"""A study of options: each varied alone, from the config as it is."""

from __future__ import annotations

from tta_cattan.bench.paper.gather import Gathered
from tta_cattan.bench.paper.grid import Difference, Grid, Row
from tta_cattan.bench.paper.presentation import Presentation, percent
from tta_cattan.bench.paper.study import Study
from tta_cattan.bench.results.tables import METHOD_NAMES


def present_options(study: Study, gathered: Gathered, same_data: bool) -> Presentation:
    """Return average accuracy and ECE of every setting, and what it gains over the method's config as it is.

    Note: the difference is of means over seeds; where it is of the size of their spread it says nothing.
    """
    averages = gathered.summary.averages
    bases = {row.method: averages.get((row.label, "accuracy")) for row in gathered.rows if not row.changes}
    order = [METHOD_NAMES.get(method, method) for method in bases]
    rows: list[Row] = []
    for row in gathered.rows:
        found, base = averages.get((row.label, "accuracy")), bases.get(row.method)
        if found is None:
            continue
        name = METHOD_NAMES.get(row.method, row.method)
        setting = ", ".join(f"{key}={value}" for key, value in row.changes) or "as it is"
        gain = Difference(100 * (found.mean - base.mean)) if row.changes and base is not None else None
        rows.append((name, setting, percent(found), percent(averages.get((row.label, "ece"))), gain))
    grid = Grid(
        "Mean accuracy in %; ECE as 100 times the fraction; gain over the config as it is, in points",
        ("method", "setting", "accuracy", "ECE", "gain"),
        tuple(sorted(rows, key=lambda row: order.index(str(row[0])))),  # all settings of a method together
    )
    return Presentation((grid,))
