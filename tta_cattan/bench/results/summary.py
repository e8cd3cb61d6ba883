"""Means and standard deviations over seeds, per domain and over domains."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from tta_cattan.bench.domain import Domain
from tta_cattan.bench.results.store import Cell, Record
from tta_cattan.util.errors import UserError


@dataclass(frozen=True)
class Statistic:
    """A mean over seeds and its sample standard deviation (None for a single seed)."""

    mean: float
    std: float | None
    n_seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Statistic:
        """Return the statistic of one value per seed."""
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), std, len(values))


@dataclass(frozen=True)
class Summary:
    """What a comparison found.

    ``cells`` holds a statistic per (method, domain, metric) that has any seed; ``averages`` one per (method, metric)
    over the seeds that have every domain: the mean over domains of each such seed, then mean and std over seeds.
    """

    methods: tuple[str, ...]
    domains: tuple[Domain, ...]
    metrics: tuple[str, ...]
    cells: Mapping[tuple[str, Domain, str], Statistic]
    averages: Mapping[tuple[str, str], Statistic]
    missing: int

    @property
    def complete(self) -> bool:
        """Tell whether every cell of the comparison is there."""
        return self.missing == 0


def summarise(records: Iterable[Record], expected: Iterable[Cell] | None = None) -> Summary:
    """Summarise ``records``, which hold each cell once.

    Note: with ``expected``, its order is the table's order, and a domain that nobody has finished yet still counts
    as one that an average needs. Without it, every method is expected on every domain with every seed seen.
    """
    by_cell = _by_cell(records)
    planned = list(expected) if expected is not None else []
    seen = list(dict.fromkeys([*planned, *by_cell]))
    methods = tuple(dict.fromkeys(cell.method for cell in seen))
    domains = tuple(dict.fromkeys(cell.target for cell in seen))
    seeds = dict.fromkeys(cell.seed for cell in seen)
    metrics = tuple(dict.fromkeys(name for record in by_cell.values() for name in record.metrics))
    if expected is None:
        planned = [Cell(m, d.name, d.severity, s) for m, d, s in product(methods, domains, seeds)]

    values: dict[tuple[str, Domain, str], dict[int, float]] = defaultdict(dict)
    for cell, record in by_cell.items():
        for metric, value in record.metrics.items():
            values[cell.method, cell.target, metric][cell.seed] = value
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
        missing=len(set(planned) - by_cell.keys()),
    )


def _by_cell(records: Iterable[Record]) -> dict[Cell, Record]:
    """Return the records by cell, refusing to choose between two results of one cell."""
    by_cell: dict[Cell, Record] = {}
    for record in records:
        first = by_cell.setdefault(record.cell, record)
        if first.fingerprint != record.fingerprint:
            raise UserError(
                f"{record.cell} has results of two configurations ({first.fingerprint} and {record.fingerprint}):"
                " summarise one fingerprint at a time"
            )
    return by_cell
