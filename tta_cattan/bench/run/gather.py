"""Gather the results of several comparisons, such as all source>target pairs; train missing source models first."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from tta_cattan.bench.data import benchmark_of
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, Benchmark, DomainBenchmark
from tta_cattan.bench.results.published import PublishedTable, published, published_benchmarks
from tta_cattan.bench.results.store import Record
from tta_cattan.bench.results.summary import Statistic, Summary, summarise
from tta_cattan.bench.results.table import Entry, Table, number
from tta_cattan.bench.run.dry_run import describe
from tta_cattan.bench.run.plan import Row, Sweep, check_read, is_stream, plan_rows
from tta_cattan.bench.run.runner import Outcome, about_data, run
from tta_cattan.bench.run.setting import check_rows, is_defined
from tta_cattan.config import load_cfg
from tta_cattan.util.errors import UserError

logger = logging.getLogger(__name__)

# Rows and their benchmarks, by source domain.
Sources = dict[str, tuple[Sequence[Row], Sequence[Benchmark]]]


def gather(
    path: Path,
    overrides: Sequence[Any],
    methods: Sequence[str],
    sweeps: Sequence[Sweep] = (),
    pairs: bool = False,
) -> Outcome:
    """Compute a study's missing cells and return its results; with ``pairs``, each source>target pair is a column."""
    benchmark = domain_benchmark(load_cfg(path, overrides)) if pairs else None
    if benchmark is None:
        return run(plan_rows(path, overrides, methods, sweeps), train=True)
    return run_sources(benchmark, plan_sources(benchmark, path, overrides, methods, sweeps))


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
) -> Sources:
    """Return the rows of every source domain with their benchmarks, checked before the first model is trained."""
    if is_stream(benchmark.cfg):
        raise UserError(
            f"SETTING = {benchmark.cfg.SETTING!r}: a stream has no source>target pairs; name one source with "
            "DATA.SOURCE and run `tta-cattan --cfg FILE`"
        )
    planned = {
        source: plan_rows(path, [*overrides, "DATA.SOURCE", source], methods, sweeps) for source in benchmark.sources()
    }
    return {source: (rows, check_rows(rows)) for source, rows in planned.items()}


def run_sources(benchmark: DomainBenchmark, by_source: Sources) -> Outcome:
    """Run the comparison of each source domain, and return all results, with the source>target pair as the domain."""
    records: list[Record] = []
    folders: dict[Path, None] = {}
    for source, (rows, _) in by_source.items():
        logger.info("source domain %s", source)
        outcome = run(rows, train=True)
        folders.update(dict.fromkeys(outcome.folders))
        # The target's name alone would be the same for every source.
        records += [
            replace(record, cell=replace(record.cell, domain=benchmark.pair_label(source, record.cell.domain)))
            for record in outcome.records
        ]
    return Outcome(rows, summarise(records), records, list(folders))


def run_pairs(path: str | Path, overrides: Sequence[Any], methods: Sequence[str], dry_run: bool = False) -> str:
    """Run every pair that the config asks for, reusing finished source models and cells; return the table.

    A dry run returns what would run.

    Note: on features, a method that needs images gets a row of dashes.
    """
    benchmark = _benchmark(load_cfg(path, overrides))
    names = [name.lower() for name in methods or [benchmark.cfg.MODEL.ADAPTATION]]
    defined = [name for name in names if is_defined(name, benchmark)]
    if not defined:
        raise UserError(f"{', '.join(names)}: needs images, and {benchmark.name} has none")
    if benchmark.cfg.MODEL.CKPT_PATH and len(benchmark.sources()) > 1:
        raise UserError(
            "MODEL.CKPT_PATH names one source model, and these pairs have several sources: name one with DATA.SOURCE"
        )
    by_source = plan_sources(benchmark, path, overrides, defined)
    cfgs = [rows[0].cfg for rows, _ in by_source.values()]
    check_read(overrides, [row for rows, _ in by_source.values() for row in rows])
    if dry_run:
        return describe(by_source)
    outcome = run_sources(benchmark, by_source)
    summary = replace(outcome.summary, methods=tuple(names))
    cfg, table = benchmark.cfg, published_of(benchmark)
    remarks = []
    if table is not None:
        remarks.append(f"(paper): {table.title}; {'; '.join(table.remarks) or 'as published'}")
        if difference := next(filter(None, (_benchmark(one).differs_from_published() for one in cfgs)), ""):
            remarks.append(f"NOT the data of the published figures: {difference}. Do not compare the two.")
    about = about_data(cfgs[0], outcome.records, f"{cfgs[0].MODEL.ARCH} trained on each of {', '.join(by_source)}")
    name = f"{benchmark.name}-{cfg.MODEL.ARCH}-pairs-{cfg.TEST.PROTOCOL}".replace("/", "_")
    folder = Path(cfg.SAVE_DIR) / name
    summary.write(folder, [about, *remarks, *_published_lines(table)])
    shown = beside_published(summary, table).to_text()
    return "\n".join([shown, *remarks, "", f"results: {folder}"])


def published_of(benchmark: DomainBenchmark) -> PublishedTable | None:
    """Return the paper's table of a benchmark; for features, that of the image benchmark with the same domains."""
    names = set(benchmark.short_names)
    alike = (
        name
        for name in published_benchmarks()
        if name in BENCHMARK_REGISTRY and set(getattr(BENCHMARK_REGISTRY.get(name), "short_names", ())) == names
    )
    return published(benchmark.name) or published(next(alike, ""))


def beside_published(summary: Summary, table: PublishedTable | None) -> Summary:
    """Return a summary in which each method is followed by its published row, if there is one."""
    if table is None:
        return summary
    methods: list[str] = []
    cells, averages = dict(summary.cells), dict(summary.averages)
    for method in summary.methods:
        methods.append(method)
        row = table.rows.get(method)
        if row is None:
            continue
        methods.append(f"{method} (paper)")
        for domain in summary.domains:
            if domain.name in row.accuracy:
                cells[methods[-1], domain, "accuracy"] = Statistic(row.accuracy[domain.name] / 100, None, 1)
        if {domain.name for domain in summary.domains} == set(
            row.accuracy
        ):  # compare averages over the same columns only
            averages[methods[-1], "accuracy"] = Statistic(row.average / 100, None, 1)
            if row.ece is not None:
                averages[methods[-1], "ece"] = Statistic(row.ece, None, 1)
    return replace(summary, methods=tuple(methods), cells=cells, averages=averages)


def _benchmark(cfg: Any) -> DomainBenchmark:
    benchmark = domain_benchmark(cfg)
    if benchmark is None:
        raise UserError(
            f"CORRUPTION.DATASET = {cfg.CORRUPTION.DATASET!r} has no source>target pairs: compare methods on it with "
            "`tta-cattan --cfg FILE --methods A,B`"
        )
    return benchmark


def _published_lines(table: PublishedTable | None) -> list[str]:
    """Return the published table, if there is one, as lines of Markdown."""
    if table is None or not table.columns:
        return []
    figures = {f"{method} (paper)": [*row.accuracy.values(), row.average] for method, row in table.rows.items()}
    rows = [[Entry(name), *map(number, values)] for name, values in figures.items()]
    markdown = Table(["method", *table.columns, "avg"], rows).to_markdown()
    return ["", "## Published accuracy (%)", "", markdown.rstrip()]
