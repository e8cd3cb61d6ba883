"""What each kind of study shows: tables, figures and remarks, and the files they are written to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tta_cattan.bench.protocols.recovery import FALLBACKS, AgreementCounts, agreement_counts
from tta_cattan.bench.report.figures import Curve, bars, dimension, lines, save, swept
from tta_cattan.bench.results.published import PublishedRow, published
from tta_cattan.bench.results.store import Record
from tta_cattan.bench.results.summary import Statistic, Summary, sample_range
from tta_cattan.bench.results.table import Entry, Table, number
from tta_cattan.bench.run.gather import domain_benchmark, published_of
from tta_cattan.bench.run.runner import Outcome
from tta_cattan.methods import method_title
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tta_cattan.bench.paper.study import Study

_MOST_DIMENSION_FIGURES = 4
_AFTER = ("source_after", "target_after", "detection", "false_alarms")  # the gate of source recovery


@dataclass(frozen=True)
class Presentation:
    """A study's tables, figures (by the suffix of their file's name), and remarks below the tables."""

    tables: tuple[Table, ...]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def to_markdown(self, title: str, notes: list[str], name: str) -> str:
        """Return the study as a Markdown page, which shows the figures ``name*.svg`` beside it."""
        parts = [f"# {title}", "\n".join(f"- {note}" for note in notes)]
        parts += [f"{table.caption}\n\n{table.to_markdown().rstrip()}" for table in self.tables]
        parts += ["\n".join(f"- {remark}" for remark in self.remarks)]
        parts += [f"![{title}]({name}{suffix}.svg)" for suffix in self.figures]
        return "\n\n".join(part for part in parts if part) + "\n"

    def to_text(self, title: str, notes: list[str]) -> str:
        tables = [f"{table.caption}\n{table.to_text()}" for table in self.tables]
        blocks = ["\n".join([title, *notes]), *tables, "\n".join(self.remarks)]
        return "\n\n".join(block for block in blocks if block)

    def write(self, folder: Path, title: str, notes: list[str], name: str) -> list[Path]:
        """Write ``name.md``, a CSV per table and the figures as SVG and PNG, and return the paths."""
        texts = {f"{name}.md": self.to_markdown(title, notes, name)}
        for place, table in enumerate(self.tables, start=1):
            texts[f"{name}.csv" if place == 1 else f"{name}-{place}.csv"] = table.to_csv(exact=True)
        for file, text in texts.items():
            write_text(folder / file, text)
        for suffix, figure in self.figures.items():
            save(figure, folder, f"{name}{suffix}")
        figures = [f"{name}{suffix}.{kind}" for suffix in self.figures for kind in ("svg", "png")]
        return [folder / file for file in (*texts, *figures)]


def percent(found: Statistic | None) -> Entry:
    """Return a fraction in %, with its standard deviation over seeds."""
    return number(None) if found is None else number(100 * found.mean, None if found.std is None else 100 * found.std)


def paper_says(study: Study) -> tuple[str, ...]:
    """Return the remark that quotes the paper, if the study has one."""
    return (f"The paper: {study.says}",) if study.says else ()


def present_table(study: Study, gathered: Outcome, same_data: bool) -> Presentation:
    """Present a table of the paper: ours, the published row and, on the paper's own data, the difference."""
    table = published(study.published[""]) if study.published else None
    summary = gathered.summary
    # A>C is Art>Clipart in one benchmark and amazon>caltech in another; corruptions have the same names everywhere.
    benchmark = domain_benchmark(gathered.cfg)
    named_alike = not study.pairs or (benchmark is not None and published_of(benchmark) is table)
    rows: list[list[Entry]] = []
    for method in summary.methods:
        ours = [*map(percent, _accuracies(summary, method)), percent(summary.averages.get((method, "ece")))]
        rows.append([Entry(method_title(method)), Entry("ours"), *ours])
        line = table.rows.get(method) if table else None
        if line is not None:
            theirs = _theirs(summary, line, named_alike)
            rows.append([Entry(""), Entry("published"), *map(number, theirs)])
            if same_data:
                differences = [_difference(one.value, other) for one, other in zip(ours, theirs, strict=True)]
                rows.append([Entry(""), Entry("difference"), *differences])
    heads = ["method", "", *summary.domain_heads(), "avg", "ECE"]
    caption = "Accuracy in %, the standard deviation over seeds; ECE as 100 times the fraction"
    remarks = (*paper_says(study), *(f"published: {remark}" for remark in (table.remarks if table else ())))
    series = {method_title(method): _accuracies(summary, method) for method in summary.methods}
    figure = bars([*summary.domain_heads(), "avg"], series, "accuracy (%)")
    return Presentation((Table(heads, rows, caption),), {"": figure}, remarks)


def _accuracies(summary: Summary, method: str) -> list[Statistic | None]:
    """Return a method's accuracy on each domain and on average."""
    cells = [summary.cells.get((method, domain, "accuracy")) for domain in summary.domains]
    return [*cells, summary.averages.get((method, "accuracy"))]


def _theirs(summary: Summary, line: PublishedRow, named_alike: bool) -> list[float | None]:
    """Return the published figures of the same columns; an average over some of them has no ECE.

    Note: if the benchmark has other columns (``named_alike`` False), only the printed average and ECE are returned.
    """
    cells = [line.accuracy.get(domain.name) if named_alike else None for domain in summary.domains]
    shown = [value for value in cells if value is not None]
    if 0 < len(shown) < len(line.accuracy):
        return [*cells, fmean(shown), None]
    return [*cells, line.average, None if line.ece is None else 100 * line.ece]


def _difference(ours: float | None, theirs: float | None) -> Entry:
    return number(None if ours is None or theirs is None else ours - theirs, sign="+")


def present_sweep(study: Study, gathered: Outcome, same_data: bool) -> Presentation:
    """Present a figure over a swept key: average accuracy and ECE at each setting, beside published averages.

    Note: a method that does not read the key has one row.
    """
    keys = list(dict.fromkeys(key for row in gathered.rows for key, _ in row.changes))
    if len(keys) != 1:
        raise UserError(f"{study.name} is a figure over one key, and {', '.join(keys)} are swept: give one --sweep")
    averages = gathered.summary.averages
    rows: list[list[Entry]] = []
    curves: dict[str, dict[Any, Statistic]] = {}
    levels: dict[str, Statistic] = {}
    for row in gathered.rows:
        name, setting = method_title(row.method), dict(row.changes).get(keys[0])
        found = averages.get((row.label, "accuracy"))
        if found is None:
            continue
        if row.changes:
            curves.setdefault(name, {})[setting] = found
        else:
            levels[name] = found
        shown = [Entry("-" if setting is None else str(setting)), Entry(name)]
        shown += [percent(found), percent(averages.get((row.label, "ece")))]
        if study.published:
            theirs = _published_average(study, row.method, setting)
            shown += [number(theirs), _difference(100 * found.mean, theirs if same_data else None)]
        rows.append(shown)
    heads = [keys[0], "method", "accuracy", "ECE", *(["published", "difference"] if study.published else [])]
    domains = gathered.summary.domains
    place = f"Mean over {len(domains)} domains" if len(domains) > 1 else f"Accuracy on {domains[0].name}"
    table = Table(heads, rows, f"{place} in %; ECE as 100 times the fraction")
    return Presentation((table,), {"": _sweep_figure(keys[0], curves, levels)}, paper_says(study))


def _published_average(study: Study, method: str, setting: Any) -> float | None:
    name = study.published.get("" if setting is None else str(setting), study.published.get(""))
    table = published(name) if name else None
    line = table.rows.get(method) if table else None
    return None if line is None else line.average


def _sweep_figure(key: str, curves: dict[str, dict[Any, Statistic]], levels: dict[str, Statistic]) -> Figure:
    """Draw lines over numeric settings, bars over any others."""
    settings = list(dict.fromkeys(setting for points in curves.values() for setting in points))
    if all(isinstance(setting, (int, float)) and not isinstance(setting, bool) for setting in settings):
        level = {name: 100 * found.mean for name, found in levels.items()}
        return swept({name: Curve.of(points) for name, points in curves.items()}, key, level)
    points = {**curves, **{name: dict.fromkeys(settings, found) for name, found in levels.items()}}
    series = {name: list(map(by.get, settings)) for name, by in points.items()}
    return bars(list(map(str, settings)), series, "accuracy (%)")


def present_dimension(study: Study, gathered: Outcome, same_data: bool) -> Presentation:
    """Present the dimension rule: d per domain (first seed), and the eigenvalue gaps and bound of a few domains."""
    first: dict[str, Record] = {}
    for record in gathered.records:
        if "dimension" in record.info:
            first.setdefault(record.cell.target.label, record)
    if not first:
        raise UserError(f"{study.name} shows CATTAn's spectrum: add cattan to --methods, with TEST.PROTOCOL offline")
    rows = []
    figures: dict[str, Figure] = {}
    for label, record in first.items():
        curve, used = record.info["dimension"], record.info["d_target"]
        rows.append([Entry(label), *map(Entry, (sample_range([record]), str(int(curve["d"][-1])), str(used)))])
        if len(figures) < _MOST_DIMENSION_FIGURES:
            figures["" if not figures else f"-{len(figures) + 1}"] = dimension(curve, used, label)
    heads = ["domain", "target samples", "largest d possible", "d"]
    how = "by the stability rule" if not gathered.cfg.CATTAN.D else "by CATTAN.D"
    return Presentation((Table(heads, rows, f"The number of directions d, {how}"),), figures, paper_says(study))


def present_recovery(study: Study, gathered: Outcome, same_data: bool) -> Presentation:
    """Present each method's accuracies before and after the gate, for every tau, and which fall-back recovers more."""
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
        figures[f"-{name}" if figures else ""] = _threshold_figure(counts)
    return Presentation((_recovery_table(by_method, tau), _threshold_table(by_method)), figures, tuple(said))


def _recovery_table(by_method: dict[str, list[AgreementCounts]], tau: float) -> Table:
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


def _threshold_table(by_method: dict[str, list[AgreementCounts]]) -> Table:
    """Return a row per method, fall-back and threshold that gates differently."""
    rows = [
        [
            *map(Entry, (name, fallback, f"{tau:.2f}")),
            *(percent(_mean(counts, tau, fallback, column)) for column in _AFTER),
        ]
        for name, counts in by_method.items()
        for fallback in FALLBACKS
        for tau in counts[0].thresholds()
    ]
    heads = ["method", "fall-back", "tau", "source accuracy", "target accuracy", "detected", "false alarms"]
    caption = "Every threshold that gates differently (0 gates nothing, 1 all that are not unanimous), in %"
    return Table(heads, rows, caption)


def _finding(name: str, counts: list[AgreementCounts], tau: float) -> str:
    """Return a line: which fall-back recovers more on source samples, and what the gate costs on target samples."""
    gain, loss = {}, {}
    for fallback in FALLBACKS:
        gated = [one.gate(tau, fallback) for one in counts]
        gain[fallback] = 100 * fmean(g.source_after - g.source_before for g in gated)
        loss[fallback] = 100 * fmean(g.target_after - g.target_before for g in gated)
    best = max(FALLBACKS, key=gain.__getitem__)
    verdict = "both fall-backs recover the same" if gain["bypass"] == gain["source"] else f"'{best}' recovers more"
    changes = "; ".join(f"{f}: source {gain[f]:+.2f}, target {loss[f]:+.2f} points" for f in FALLBACKS)
    return f"{name}, tau {tau:g}: {verdict} ({changes})"


def _threshold_figure(counts: list[AgreementCounts]) -> Figure:
    taus = counts[0].thresholds()
    curves = {}
    for fallback in FALLBACKS:
        for origin in ("source", "target"):
            found = {tau: _mean(counts, tau, fallback, f"{origin}_after") for tau in taus}
            curves[f"{origin} samples ({fallback})"] = Curve.of(found)
    return lines(curves, "tau", "accuracy (%)")


def _mean(counts: list[AgreementCounts], tau: float, fallback: str, column: str) -> Statistic:
    return _over(counts, lambda c: getattr(c.gate(tau, fallback), column))


def _over(counts: list[AgreementCounts], value: Callable[[AgreementCounts], float]) -> Statistic:
    """Return the mean of a fraction over seeds and domains, and its standard deviation."""
    return Statistic.of([value(one) for one in counts])
