"""Comparisons from several source domains: a run per source, a column per source>target pair."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tta_cattan.bench.data.adaptation import DomainBenchmark
from tta_cattan.bench.results.store import Record
from tta_cattan.bench.run.plan import Row, Sweep, plan_rows
from tta_cattan.bench.run.runner import Outcome, run
from tta_cattan.bench.run.setting import check_rows
from tta_cattan.bench.source.model import ensure_trained

logger = logging.getLogger(__name__)


def plan_sources(
    benchmark: DomainBenchmark,
    path: str | Path,
    overrides: Sequence[Any],
    methods: Sequence[str],
    sweeps: Sequence[Sweep] = (),
) -> dict[str, list[Row]]:
    """Return the rows of every source domain, checked before the first model is trained."""
    by_source = {
        source: plan_rows(path, [*overrides, "DATA.SOURCE", source], methods, sweeps) for source in benchmark.sources()
    }
    for rows in by_source.values():
        check_rows(rows)
    return by_source


def run_trained(rows: Sequence[Row]) -> Outcome:
    """Train the source models that are missing, where they are ones that are trained, then run the comparison."""
    for row, benchmark in zip(rows, check_rows(rows), strict=True):
        ensure_trained(row.cfg, benchmark)
    return run(rows)


def run_sources(
    benchmark: DomainBenchmark, by_source: Mapping[str, Sequence[Row]]
) -> tuple[list[Record], tuple[Path, ...]]:
    """Run the comparison of each source and return all results, told apart by their pair, and their folders."""
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
