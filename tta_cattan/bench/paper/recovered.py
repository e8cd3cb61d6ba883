"""The figure of source recovery: accuracy on source and target samples of a mix, over the threshold."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import TYPE_CHECKING

from tta_cattan.bench.paper.present import Presentation, paper_says, percent
from tta_cattan.bench.paper.study import Study
from tta_cattan.bench.protocols.recovery import FALLBACKS, AgreementCounts, agreement_counts
from tta_cattan.bench.report.figures import Curve, lines
from tta_cattan.bench.results.summary import Statistic
from tta_cattan.bench.results.table import Entry, Table
from tta_cattan.bench.run.gather import Gathered
from tta_cattan.methods import method_title
from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = ("source_after", "target_after", "detection", "false_alarms")


def present_recovery(study: Study, gathered: Gathered, same_data: bool) -> Presentation:
    """Return each method's accuracies before and after the gate, tau swept, and which fall-back recovers more."""
    by_method = {
        method_title(row.method): agreement_counts(r for r in gathered.records if r.cell.label == row.label)
        for row in gathered.rows
    }
    if not all(by_method.values()):
        raise UserError(f"{study.name} needs results of TEST.PROTOCOL recovery: leave the protocol to the study")
    tau = gathered.cfg.RECOVERY.TAU
    said = list(paper_says(study))
    figures: dict[str, Figure] = {}
    for name, counts in by_method.items():
        said.append(_finding(name, counts, tau))
        figures[f"-{name}" if figures else ""] = _figure(counts)
    return Presentation((_overview(by_method, tau), _sweep(by_method)), figures, tuple(said))


def _overview(by_method: dict[str, list[AgreementCounts]], tau: float) -> Table:
    """Return a row per method: accuracy before the gate and after it with either fall-back, and the detection."""
    heads = [
        "method", "source: before", "after, bypass", "after, source", "source model",
        "target: before", "after, bypass", "after, source", "detected", "false alarms", "AUROC",
    ]  # fmt: skip
    rows = []
    for name, counts in by_method.items():
        found = [
            _over(counts, lambda c: c.accuracy("source", "adapted")),
            *(_mean(counts, tau, fallback, "source_after") for fallback in FALLBACKS),
            _over(counts, lambda c: c.accuracy("source", "source")),
            _over(counts, lambda c: c.accuracy("target", "adapted")),
            *(_mean(counts, tau, fallback, "target_after") for fallback in FALLBACKS),
            _mean(counts, tau, "source", "detection"),
            _mean(counts, tau, "source", "false_alarms"),
            _over(counts, AgreementCounts.auroc),
        ]
        rows.append([Entry(name), *map(percent, found)])
    return Table(heads, rows, f"Accuracy, detection, false alarms and AUROC in % on a 50/50 mix, tau = {tau:g}")


def _sweep(by_method: dict[str, list[AgreementCounts]]) -> Table:
    """Return a row per method, fall-back and threshold that gates differently."""
    rows = [
        [
            *map(Entry, (name, fallback, f"{tau:.2f}")),
            *(percent(_mean(counts, tau, fallback, column)) for column in _COLUMNS),
        ]
        for name, counts in by_method.items()
        for fallback in FALLBACKS
        for tau in counts[0].thresholds()
    ]
    heads = ["method", "fall-back", "tau", "source accuracy", "target accuracy", "detected", "false alarms"]
    caption = "Every threshold that gates differently (0 gates nothing, 1 all that are not unanimous), in %"
    return Table(heads, rows, caption)


def _finding(name: str, counts: list[AgreementCounts], tau: float) -> str:
    """Say which fall-back recovers more on source samples, and what the gate costs on target samples."""
    gain, loss = {}, {}
    for fallback in FALLBACKS:
        gated = [one.gate(tau, fallback) for one in counts]
        gain[fallback] = 100 * fmean(g.source_after - g.source_before for g in gated)
        loss[fallback] = 100 * fmean(g.target_after - g.target_before for g in gated)
    best = max(FALLBACKS, key=gain.__getitem__)
    verdict = "both fall-backs recover the same" if gain["bypass"] == gain["source"] else f"'{best}' recovers more"
    changes = "; ".join(f"{f}: source {gain[f]:+.2f}, target {loss[f]:+.2f} points" for f in FALLBACKS)
    return f"{name}, tau {tau:g}: {verdict} ({changes})"


def _figure(counts: list[AgreementCounts]) -> Figure:
    taus = counts[0].thresholds()
    curves = {}
    for fallback in FALLBACKS:
        for origin in ("source", "target"):
            found = [_mean(counts, tau, fallback, f"{origin}_after") for tau in taus]
            std = [100 * one.std for one in found if one.std is not None]
            curves[f"{origin} samples ({fallback})"] = Curve(taus, [100 * one.mean for one in found], std or None)
    return lines(curves, "tau", "accuracy (%)")


def _mean(counts: list[AgreementCounts], tau: float, fallback: str, column: str) -> Statistic:
    return _over(counts, lambda c: getattr(c.gate(tau, fallback), column))


def _over(counts: list[AgreementCounts], value: Callable[[AgreementCounts], float]) -> Statistic:
    """Return the mean of a fraction over seeds and domains, and its standard deviation."""
    return Statistic.of([value(one) for one in counts])
