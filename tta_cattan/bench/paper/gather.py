"""Running what a study needs: cells that are missing are computed, those that are there are used again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_cattan.bench.data import benchmark_of
from tta_cattan.bench.data.adaptation import DomainBenchmark
from tta_cattan.bench.results.store import Record
from tta_cattan.bench.results.summary import Summary, summarise
from tta_cattan.bench.run.plan import Row, Sweep, plan_rows, sweeps_of
from tta_cattan.bench.run.sources import plan_sources, run_sources, run_trained
from tta_cattan.config import leaves, load_cfg

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
    path: Path,
    overrides: Sequence[Any],
    methods: Sequence[str],
    sweeps: Sequence[Sweep] = (),
    vary: Sequence[Sweep] = (),
    pairs: bool = False,
) -> Gathered:
    """Run a study and return its results.

    ``sweeps`` are combined with each other; each of ``vary`` is alone, beside the config as it is. With ``pairs``, each
    source>target pair is a column of its own.
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
    """Return a row for each setting of a key that differs from the config's own, for the methods that read it."""
    readers = [method for method in methods if sweeps_of(method, [sweep])]
    own = {row.method: dict(leaves(row.cfg))[sweep.key] for row in plan_rows(path, overrides, readers)}
    return [
        row for row in plan_rows(path, overrides, readers, [sweep]) if row.changes != ((sweep.key, own[row.method]),)
    ]


def domain_benchmark(cfg: CfgNode) -> DomainBenchmark | None:
    """Return the benchmark of a config where it has source>target pairs."""
    benchmark = benchmark_of(cfg)
    return benchmark if isinstance(benchmark, DomainBenchmark) else None
