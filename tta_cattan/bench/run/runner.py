"""Running a comparison: what is missing is computed, what is there is used again."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch

from tta_cattan.bench.data import Benchmark
from tta_cattan.bench.domain import Domain
from tta_cattan.bench.results.store import Cell, Record, ResultsStore, row_label
from tta_cattan.bench.results.summary import Summary, summarise
from tta_cattan.bench.run.cell import one_by_one
from tta_cattan.bench.run.description import header_lines, run_folder, write_description
from tta_cattan.bench.run.log import error_line, setup_logging
from tta_cattan.bench.run.plan import Job, Row, plan_cells, seeds
from tta_cattan.bench.run.rehearsal import rehearse_rows
from tta_cattan.bench.run.setting import Setting, check_files, check_rows, prepare_settings
from tta_cattan.util.progress import progress

logger = logging.getLogger(__name__)

# Cells and the setting of each row -> their records, in the order in which they are finished.
Launcher = Callable[[Sequence[tuple[Job, Cell]], Mapping[str, Setting]], Iterator[Record]]


class Outcome(NamedTuple):
    """What a comparison found, where it lies, and the records that it is made of."""

    summary: Summary
    folder: Path
    records: list[Record]


def dry_run(rows: Sequence[Row]) -> None:
    """Do all of a comparison that can fail on the user's side and nothing that takes long or writes."""
    benchmarks = _checked(rows)
    check_files(rows, benchmarks)
    cells = plan_cells([Job(row.cfg, row.changes) for row in rows], [benchmark.domains() for benchmark in benchmarks])
    logger.info("dry run: %d cells would be computed; the configuration and the data are in order", len(cells))


def run(rows: Sequence[Row], launcher: Launcher = one_by_one) -> Outcome:
    """Run the comparison of ``rows``."""
    benchmarks = _checked(rows)
    domains = [benchmark.domains() for benchmark in benchmarks]
    first = rows[0].cfg
    torch.backends.cudnn.benchmark = first.CUDNN.BENCHMARK
    prepared = prepare_settings(rows, benchmarks)
    jobs = [
        Job(row.cfg, row.changes, setting.fingerprint(row.cfg)) for row, setting in zip(rows, prepared, strict=True)
    ]
    settings = {job.label: setting for job, setting in zip(jobs, prepared, strict=True)}
    cells = _of_these_files(plan_cells(jobs, domains), settings)
    folder = run_folder(jobs, settings)
    store = ResultsStore(folder)
    with store.lock():
        setup_logging(folder, first.LOG_DEST)
        for line in dict.fromkeys(_source_line(job, settings[job.label]) for job in jobs):
            logger.info(line)
        write_description(folder, jobs, settings)
        _compute(cells, store, settings, launcher)
        found = [record for job, cell in cells if (record := store.find(cell, job.fingerprint))]
        summary = summarise(found, expected=[cell for _, cell in cells])
        summary.write(folder, header_lines(jobs, settings, found))
    return Outcome(summary, folder, found)


def _checked(rows: Sequence[Row]) -> list[Benchmark]:
    benchmarks = check_rows(rows)
    rehearse_rows(rows, benchmarks)
    return benchmarks


def _of_these_files(cells: Sequence[tuple[Job, Cell]], settings: Mapping[str, Setting]) -> list[tuple[Job, Cell]]:
    """Return the cells, each job's fingerprint ending in the identity of the files of the cell's domain, if it has any.

    Note: per domain, so that another corruption in the same folder repeats no cell of the first.
    """
    known: dict[tuple[int, Domain], str] = {}
    stamped = []
    for job, cell in cells:
        benchmark = settings[job.label].benchmark
        key = (id(benchmark), cell.target)
        if key not in known:
            known[key] = benchmark.identity(cell.target)
        fingerprint = "-".join(filter(None, (job.fingerprint, known[key])))
        stamped.append((replace(job, fingerprint=fingerprint), cell))
    return stamped


def _compute(
    cells: Sequence[tuple[Job, Cell]], store: ResultsStore, settings: Mapping[str, Setting], launcher: Launcher
) -> None:
    """Compute the cells that the store lacks, and log each domain's error in TENT's format once it is whole."""
    there = [record for job, cell in cells if (record := store.find(cell, job.fingerprint))]
    missing = [(job, cell) for job, cell in cells if store.find(cell, job.fingerprint) is None]
    if there:
        logger.info("%d of %d cells are there already", len(there), len(cells))
    jobs = {job.label: job for job, _ in cells}
    shown = ""
    accuracies: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for record in progress(chain(there, _kept(launcher(missing, settings), store)), len(cells), "cells"):
        cell, job = record.cell, jobs[record.cell.label]
        found = accuracies[cell.label, cell.target.label]
        found[cell.seed] = record.metrics["accuracy"]
        if len(found) == len(seeds(job.cfg)):  # one line per domain, as TENT has it: the mean over the seeds
            if job.label != shown:
                shown = job.label
                logger.info("test-time adaptation: %s", row_label(job.method.upper(), job.changes))
            logger.info(error_line(cell.target.label, sum(found.values()) / len(found)))


def _kept(records: Iterator[Record], store: ResultsStore) -> Iterator[Record]:
    """Yield each record once it is on the disk."""
    for record in records:
        store.append(record)
        yield record


def _source_line(job: Job, setting: Setting) -> str:
    loaded = setting.loaded
    return f"source model: {job.cfg.MODEL.ARCH}, sha256 {loaded.sha256[:16]}, from {loaded.origin}"
