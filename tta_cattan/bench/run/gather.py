"""Gathering the results of several comparisons, training missing source models first.

A domain-adaptation benchmark has a run per source domain and a column per source>target pair.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_cattan.bench.data import benchmark_of
from tta_cattan.bench.data.adaptation import DomainBenchmark
from tta_cattan.bench.results.store import Record
from tta_cattan.bench.results.summary import Summary, summarise
from tta_cattan.bench.run.plan import Row, Sweep, is_stream, plan_rows, sweeps_of
from tta_cattan.bench.run.runner import Outcome, run
from tta_cattan.bench.run.setting import check_rows
from tta_cattan.bench.source.model import ensure_trained
from tta_cattan.config import leaves, load_cfg
from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gathered:
    """The rows of a study (methods, or settings of a sweep), their results, and the folders of these."""

    rows: tuple[Row, ...]
    summary: Summary
    records: tuple[Record, ...]
    folders: tuple[Path, ...]

    @property
    def cfg(self) -> CfgNode:
        """The config of the first row."""
        return self.rows[0].cfg


def gather(
    path: Path,
    overrides: Sequence[Any],
    methods: Sequence[str],
    sweeps: Sequence[Sweep] = (),
    vary: Sequence[Sweep] = (),
    pairs: bool = False,
) -> Gathered:
    """Run what is missing of a study and return its results.

    ``sweeps`` are combined with each other; each of ``vary`` is changed alone, beside the unchanged config. With
    ``pairs``, each source>target pair is a column.
    """
    benchmark = domain_benchmark(load_cfg(path, overrides)) if pairs else None
    if benchmark is None:
        rows = plan_rows(path, overrides, methods, sweeps)
        rows += [row for sweep in vary for row in varied(path, overrides, methods, sweep)]
        outcome = run_trained(rows)
        return Gathered(tuple(rows), outcome.summary, tuple(outcome.records), (outcome.folder,))
    by_source = plan_sources(benchmark, path, overrides, methods, sweeps)
    records, folders = run_sources(benchmark, by_source)
    *_, rows = by_source.values()
    return Gathered(tuple(rows), summarise(records), tuple(records), folders)


def varied(path: Path, overrides: Sequence[Any], methods: Sequence[str], sweep: Sweep) -> list[Row]:
    """Return a row per setting that differs from the config's own, for the methods that read the key."""
    readers = [method for method in methods if sweeps_of(method, [sweep])]
    own = {row.method: dict(leaves(row.cfg))[sweep.key] for row in plan_rows(path, overrides, readers)}
    return [
        row for row in plan_rows(path, overrides, readers, [sweep]) if row.changes != ((sweep.key, own[row.method]),)
    ]


def domain_benchmark(cfg: CfgNode) -> DomainBenchmark | None:
    """Return the config's benchmark if it has source>target pairs."""
    benchmark = benchmark_of(cfg)
    return benchmark if isinstance(benchmark, DomainBenchmark) else None


def plan_sources(
    benchmark: DomainBenchmark,
    path: str | Path,
    overrides: Sequence[Any],
    methods: Sequence[str],
    sweeps: Sequence[Sweep] = (),
) -> dict[str, list[Row]]:
    """Return the rows of every source domain, all checked before the first model is trained."""
    if is_stream(benchmark.cfg):
        raise UserError(
            f"SETTING = {benchmark.cfg.SETTING!r}: a stream has no source>target pairs; name one source with "
            "DATA.SOURCE and run `tta-cattan --cfg FILE`"
        )
    by_source = {
        source: plan_rows(path, [*overrides, "DATA.SOURCE", source], methods, sweeps) for source in benchmark.sources()
    }
    for rows in by_source.values():
        check_rows(rows)
    return by_source


def run_sources(
    benchmark: DomainBenchmark, by_source: Mapping[str, Sequence[Row]]
) -> tuple[list[Record], tuple[Path, ...]]:
    """Run the comparison of each source; return all records, with the pair as their domain, and the folders."""
    records: list[Record] = []
    folders: dict[Path, None] = {}
    for source, rows in by_source.items():
        logger.info("source domain %s", source)
        outcome = run_trained(rows)
        folders[outcome.folder] = None
        # The target's name alone would be the same for every source.
        records += [
            replace(record, cell=replace(record.cell, domain=benchmark.pair_label(source, record.cell.domain)))
            for record in outcome.records
        ]
    return records, tuple(folders)


def run_trained(rows: Sequence[Row]) -> Outcome:
    """Train the missing source models of a comparison, then run it."""
    for row, benchmark in zip(rows, check_rows(rows), strict=True):
        ensure_trained(row.cfg, benchmark)
    return run(rows)
