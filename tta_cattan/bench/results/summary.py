"""Means and standard deviations over seeds, per domain and over domains, and the tables and files that show them."""

from __future__ import annotations

import json
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tta_cattan.bench import Domain
from tta_cattan.bench.results.store import Cell, Record
from tta_cattan.bench.results.table import MISSING, Entry, Table, mark_best, number_range
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import write_text

# The column heads of the paper's tables.
_SHORT_NAMES = {
    "gaussian_noise": "gauss",
    "shot_noise": "shot",
    "impulse_noise": "impulse",
    "defocus_blur": "defocus",
    "glass_blur": "glass",
    "motion_blur": "motion",
    "zoom_blur": "zoom",
    "brightness": "bright",
    "elastic_transform": "elastic",
    "pixelate": "pixel",
    "jpeg_compression": "jpeg",
}


@dataclass(frozen=True)
class Metric:
    """How a metric is shown: its title, the format of its values, and which of them is best (None: no best)."""

    title: str
    show: Callable[[float], str] = "{:.4g}".format
    best: Callable[[Iterable[float]], float] | None = None


_METRICS = {
    "accuracy": Metric("Accuracy (%)", lambda value: f"{100 * value:.1f}", max),
    "ece": Metric("ECE", "{:.2f}".format, min),
    "nll": Metric("NLL", "{:.3f}".format, min),
    "brier": Metric("Brier score", "{:.3f}".format, min),
    "worst_window": Metric("Accuracy in the worst window of the stream (%)", lambda value: f"{100 * value:.1f}", max),
    "clean_accuracy": Metric("Accuracy on clean data after the stream (%)", lambda value: f"{100 * value:.1f}", max),
    "seconds": Metric("Seconds", best=min),
    "images_per_second": Metric("Images per second", "{:,.0f}".format, max),
    "peak_memory": Metric("Peak memory (MB)", lambda value: f"{value / 1e6:,.0f}"),
    "extra_bytes": Metric("Kept beside TENT's (kB)", lambda value: f"{value / 1e3:,.1f}"),
}


# The columns that a stream adds to the table for the terminal.
_STREAM_HEADS = {"worst_window": "worst", "clean_accuracy": "clean"}


@dataclass(frozen=True)
class Statistic:
    """A mean over seeds and its sample standard deviation (None for a single seed)."""

    mean: float
    std: float | None
    n_seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Statistic:
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), std, len(values))


@dataclass(frozen=True)
class Summary:
    """The results of a comparison.

    ``cells`` holds a statistic per (method, domain, metric) that has any seed; ``averages`` one per (method, metric)
    over the seeds that have every domain: the mean over domains of each such seed, then mean and std over seeds.
    """

    methods: tuple[str, ...]  # the labels of the rows
    domains: tuple[Domain, ...]
    metrics: tuple[str, ...]
    cells: Mapping[tuple[str, Domain, str], Statistic]
    averages: Mapping[tuple[str, str], Statistic]
    missing: int

    @property
    def complete(self) -> bool:
        return self.missing == 0

    def domain_heads(self) -> list[str]:
        """Return a short column head per domain, with the severity only if the domains differ in it."""
        severities = {domain.severity for domain in self.domains}
        names = [_SHORT_NAMES.get(domain.name, domain.name) for domain in self.domains]
        if len(severities) < 2:
            return names
        return [f"{name}{domain.severity or ''}" for name, domain in zip(names, self.domains, strict=True)]

    def domain_column(self, domain: Domain, metric: str) -> list[Entry]:
        """Return each method's mean on a domain, the best marked."""
        return _column([self.cells.get((m, domain, metric)) for m in self.methods], metric)

    def average_column(self, metric: str, spread: str = " ± {}") -> list[Entry]:
        """Return each method's mean over the domains with its standard deviation over seeds, the best marked."""
        return _column([self.averages.get((m, metric)) for m in self.methods], metric, spread)

    def table(self, metric: str = "accuracy") -> Table:
        """Return the table of a metric: a row per method, a column per domain and one for the average."""
        columns = [self.domain_column(domain, metric) for domain in self.domains]
        return self._table([*self.domain_heads(), "avg"], [*columns, self.average_column(metric)])

    def to_text(self) -> str:
        """Return a table for the terminal: accuracy per domain and on average, stream metrics, and the average ECE."""
        of_streams = {metric: head for metric, head in _STREAM_HEADS.items() if metric in self.metrics}
        averages = [self.average_column(metric, " ({})") for metric in ("accuracy", *of_streams, "ece")]
        if of_streams:  # one column: the stream
            table = self._table([*self.domain_heads(), *of_streams.values(), "ECE"], averages)
            notes = ["accuracy in %; worst: in the worst window of the stream; clean: on clean data after the stream"]
        else:
            columns = [self.domain_column(domain, "accuracy") for domain in self.domains]
            table = self._table([*self.domain_heads(), "avg", "ECE"], [*columns, *averages])
            notes = ["accuracy in %; avg and ECE: mean over the domains (standard deviation over seeds)"]
        return "\n".join([table.to_text(), *notes, *self._warnings(), ""])

    def to_json(self) -> str:
        content = {
            "schema": 1,
            "complete": self.complete,
            "missing": self.missing,
            "methods": self.methods,
            "domains": [_domain_fields(domain) for domain in self.domains],
            "metrics": self.metrics,
            "cells": [
                {"method": method, **_domain_fields(domain), "metric": metric, **vars(found)}
                for (method, domain, metric), found in self.cells.items()
            ],
            "averages": [
                {"method": method, "metric": metric, **vars(found)} for (method, metric), found in self.averages.items()
            ],
        }
        return json.dumps(content, indent=2, allow_nan=False) + "\n"

    def write(self, folder: str | os.PathLike[str], header_lines: Iterable[str] = ()) -> None:
        """Write ``summary.md`` (the header lines, then a table per metric) and ``summary.json``."""
        parts = ["\n".join([*header_lines, *self._warnings()])]
        for metric in self.metrics:
            if metric != "n":  # the size of a domain is not a result
                parts.append(f"## {shown_as(metric).title}\n\n{self.table(metric).to_markdown().rstrip()}")
        markdown = "\n\n".join(part for part in parts if part) + "\n"
        for suffix, text in (("md", markdown), ("json", self.to_json())):
            write_text(Path(folder) / f"summary.{suffix}", text)

    def _table(self, heads: Sequence[str], columns: Iterable[Sequence[Entry]]) -> Table:
        return Table(["method", *heads], list(zip(map(Entry, self.methods), *columns, strict=True)))

    def _warnings(self) -> list[str]:
        if self.complete:
            return []
        return [f"Incomplete (results missing: {self.missing}); an average is over the seeds that have every domain."]


def summarise(records: Iterable[Record], expected: Iterable[Cell] | None = None) -> Summary:
    """Summarise ``records``, one row per label; a cell must not occur under two fingerprints.

    Note: with ``expected``, its order is the table's order, and domains without results still count for averages.
    Without it, every method is expected on every domain with every seed seen.
    """
    named = [(record.cell.label, record) for record in records]
    return _summarise(named, None if expected is None else [_square(cell.label, cell) for cell in expected])


def summarise_rows(rows: Mapping[str, Iterable[Record]]) -> Summary:
    """Summarise the records of each row, whatever their cells' labels are."""
    return _summarise([(name, record) for name, records in rows.items() for record in records])


def shown_as(metric: str) -> Metric:
    return _METRICS.get(metric, Metric(metric))


def sample_range(records: Iterable[Record]) -> str:
    """Return how many samples a domain has, ``1,000`` or ``1,000 to 2,000``."""
    sizes = [int(record.metrics["n"]) for record in records if "n" in record.metrics]
    return number_range(sizes) if sizes else MISSING


# The name of a row, a domain and a seed.
_Square = tuple[str, Domain, int]


def _square(name: str, cell: Cell) -> _Square:
    return name, cell.target, cell.seed


def _summarise(named: Iterable[tuple[str, Record]], expected: Sequence[_Square] | None = None) -> Summary:
    by_square: dict[_Square, Record] = {}
    for name, record in named:
        first = by_square.setdefault(_square(name, record.cell), record)
        if first.fingerprint != record.fingerprint:
            raise UserError(
                f"{record.cell} has results of two configurations ({first.fingerprint} and {record.fingerprint}):"
                " summarise one fingerprint at a time"
            )
    seen = [*(expected or ()), *by_square]
    methods = tuple(dict.fromkeys(name for name, _, _ in seen))
    domains = tuple(dict.fromkeys(domain for _, domain, _ in seen))
    seeds = tuple(dict.fromkeys(seed for _, _, seed in seen))
    metrics = tuple(dict.fromkeys(name for record in by_square.values() for name in record.metrics))
    planned = product(methods, domains, seeds) if expected is None else expected

    values: dict[tuple[str, Domain, str], dict[int, float]] = defaultdict(dict)
    for (method, domain, seed), record in by_square.items():
        for metric, value in record.metrics.items():
            values[method, domain, metric][seed] = value
    averages = {}
    for method, metric in product(methods, metrics):
        columns = [values.get((method, domain, metric), {}) for domain in domains]
        whole = [seed for seed in seeds if all(seed in column for column in columns)]
        if whole:
            averages[method, metric] = Statistic.of(
                [statistics.fmean(column[seed] for column in columns) for seed in whole]
            )
    return Summary(
        methods=methods,
        domains=domains,
        metrics=metrics,
        cells={key: Statistic.of(list(by_seed.values())) for key, by_seed in values.items()},
        averages=averages,
        missing=len(set(planned) - by_square.keys()),
    )


def _column(found: Sequence[Statistic | None], metric: str, spread: str = "") -> list[Entry]:
    """Return a column of a metric, its standard deviations formatted by ``spread``, the best marked."""
    shown = shown_as(metric)
    column = [_entry(one, shown.show, spread) for one in found]
    return column if shown.best is None else mark_best(column, shown.best, shown.show)


def _entry(found: Statistic | None, show: Callable[[float], str], spread: str) -> Entry:
    if found is None:
        return Entry(MISSING)
    std = spread.format(show(found.std)) if spread and found.std is not None else ""
    return Entry(show(found.mean) + std, found.mean, found.std)


def _domain_fields(domain: Domain) -> dict[str, str | int]:
    return {"domain": domain.name, "severity": domain.severity, "label": domain.label}
