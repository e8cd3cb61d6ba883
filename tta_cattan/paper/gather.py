"""Running what a study needs: cells that are missing are computed, those that are there are used again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_cattan.config import load_cfg
from tta_cattan.data import BENCHMARK_REGISTRY
from tta_cattan.data.adaptation import DomainBenchmark
from tta_cattan.runs.plan import Row, plan_rows
from tta_cattan.runs.runner import Outcome, run_records
from tta_cattan.runs.setting import check_rows
from tta_cattan.runs.store import Record
from tta_cattan.runs.summary import Summary, summarise
from tta_cattan.runs.sweep import Sweep
from tta_cattan.source.model import ensure_trained

if TYPE_CHECKING:
    from yacs.config import CfgNode


@dataclass(frozen=True)
class Gathered:
    """The rows of a study (methods, or settings of a sweep), their results, and where they lie."""

    rows: tuple[Row, ...]
    summary: Summary
    records: tuple[Record, ...]
    folders: tuple[Path, ...]

    @property
    def cfg(self) -> CfgNode:
        """The config of the first row."""
        return self.rows[0].cfg


def gather(
    path: Path, overrides: Sequence[Any], methods: Sequence[str], sweeps: Sequence[Sweep] = (), pairs: bool = False
) -> Gathered:
    """Run a study and return its results; with ``pairs``, each source>target pair is a column of its own."""
    benchmark = domain_benchmark(load_cfg(path, overrides)) if pairs else None
    if benchmark is None:
        rows = plan_rows(path, overrides, methods, sweeps)
        outcome = _run(rows)
        return Gathered(tuple(rows), outcome.summary, tuple(outcome.records), (outcome.folder,))
    by_source = {
        source: plan_rows(path, [*overrides, "DATA.SOURCE", source], methods, sweeps) for source in benchmark.sources()
    }
    for rows in by_source.values():  # all data, before the first model is trained
        check_rows(rows)
    records: list[Record] = []
    folders: dict[Path, None] = {}
    for source, rows in by_source.items():
        outcome = _run(rows)
        folders[outcome.folder] = None
        # The target's name alone would be the same for every source.
        records += [
            replace(record, cell=replace(record.cell, domain=benchmark.pair_label(source, record.cell.domain)))
            for record in outcome.records
        ]
    return Gathered(tuple(rows), summarise(records), tuple(records), tuple(folders))


def _run(rows: Sequence[Row]) -> Outcome:
    """Train the source models that are missing, where they are ones that are trained, then run the comparison."""
    for row, benchmark in zip(rows, check_rows(rows), strict=True):
        ensure_trained(row.cfg, benchmark)
    return run_records(rows)


def domain_benchmark(cfg: CfgNode) -> DomainBenchmark | None:
    """Return the benchmark of a config where it has source>target pairs."""
    benchmark = BENCHMARK_REGISTRY.get(cfg.CORRUPTION.DATASET)(cfg)
    return benchmark if isinstance(benchmark, DomainBenchmark) else None
