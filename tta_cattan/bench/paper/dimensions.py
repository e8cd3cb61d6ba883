"""The figure of the dimension rule: eigenvalue gaps, the bound, and the d that it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tta_cattan.bench.paper.gather import Gathered
from tta_cattan.bench.paper.grid import Grid
from tta_cattan.bench.paper.presentation import Presentation
from tta_cattan.bench.paper.study import Study
from tta_cattan.bench.report.figures import dimension
from tta_cattan.bench.results.store import Record
from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_FIGURES = 4


def present_dimension(study: Study, gathered: Gathered, same_data: bool) -> Presentation:
    """Return d per domain (first seed), and the gaps against the bound for the first few domains."""
    first: dict[str, Record] = {}
    for record in gathered.records:
        if "dimension" in record.info:
            first.setdefault(record.cell.label, record)
    if not first:
        raise UserError(f"{study.name} shows CATTAn's spectrum: add cattan to --methods, with TEST.PROTOCOL offline")
    rows = []
    figures: dict[str, Figure] = {}
    for label, record in first.items():
        curve, used = record.info["dimension"], record.info["d_target"]
        rows.append((label, f"{record.metrics['n']:,.0f}", str(int(curve["d"][-1])), str(used)))
        if len(figures) < _MOST_FIGURES:
            figures["" if not figures else f"-{len(figures) + 1}"] = dimension(curve, used, label)
    heads = ("domain", "target samples", "largest d possible", "d")
    how = "by the stability rule" if not gathered.cfg.CATTAN.D else "by CATTAN.D"
    said = (f"The paper: {study.says}",) if study.says else ()
    return Presentation((Grid(f"The number of directions d, {how}", heads, tuple(rows)),), figures, said)
