"""Run a comparison: compute missing results and reuse finished ones."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from yacs.config import CfgNode

from tta_cattan.bench import Domain
from tta_cattan.bench.data import Benchmark, stream_identity
from tta_cattan.bench.results.identity import config_path, git_revision, machine, versions, write_run_file
from tta_cattan.bench.results.store import Record, ResultsStore, checkpoint_path, row_label
from tta_cattan.bench.results.summary import Summary, sample_range, summarise
from tta_cattan.bench.run.cell import Fault, one_by_one
from tta_cattan.bench.run.log import error_line, setup_logging
from tta_cattan.bench.run.plan import Job, Row, is_stream, plan_cells, protocol_name, seeds
from tta_cattan.bench.run.plausible import warn_of_wrong_setup
from tta_cattan.bench.run.setting import Setting, check_rows, prepare_settings, rehearse_rows, subspace_hash
from tta_cattan.bench.source.model import ensure_trained
from tta_cattan.config import dump_yaml, own_keys, to_dict
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_text, write_text
from tta_cattan.util.progress import progress

logger = logging.getLogger(__name__)

_LONGEST_SWEEP = 120  # characters; file systems allow 255 for the whole name
# Jobs and the setting of each row -> their records, as they finish.
Launcher = Callable[[Sequence[Job], Mapping[str, Setting]], Iterator[Record | Fault]]


class Outcome(NamedTuple):
    """The outcome of a comparison: its rows, their results, and the folders of the results."""

    rows: Sequence[Row]
    summary: Summary
    records: Sequence[Record]
    folders: Sequence[Path]

    @property
    def cfg(self) -> CfgNode:
        return self.rows[0].cfg


def run(rows: Sequence[Row], launcher: Launcher = one_by_one, train: bool = False) -> Outcome:
    """Compute the missing cells of a comparison; with ``train``, first train missing source models that take hours."""
    benchmarks = check_rows(rows)
    rehearse_rows(rows, benchmarks)
    if train:
        for row, benchmark in zip(rows, benchmarks, strict=True):
            ensure_trained(row.cfg, benchmark)
    first = rows[0].cfg
    torch.backends.cudnn.benchmark = first.CUDNN.BENCHMARK
    prepared = prepare_settings(rows, benchmarks)
    settings = {row.label: setting for row, setting in zip(rows, prepared, strict=True)}
    fingerprints = {row.label: settings[row.label].fingerprint(row.cfg) for row in rows}
    folder = run_folder(rows, settings)
    jobs = _jobs(rows, settings, fingerprints, folder)
    store = ResultsStore(folder)
    with store.lock():
        setup_logging(folder, first.LOG_DEST)
        for arch, loaded in dict.fromkeys((row.cfg.MODEL.ARCH, settings[row.label].loaded) for row in rows):
            logger.info("source model: %s, sha256 %s, from %s", arch, loaded.sha256[:16], loaded.origin)
        write_description(folder, rows, settings, fingerprints)
        if any(store.find(job.cell, job.fingerprint) is None for job in jobs):
            _warn(rows, settings)
        left_out = _compute(jobs, store, settings, launcher)
        rows = [row for row in rows if row.label not in left_out]
        jobs = [job for job in jobs if job.cell.label not in left_out]
        if not rows:
            raise UserError(f"no method could run: {'; '.join(left_out.values())}")
        found = [record for job in jobs if (record := store.find(job.cell, job.fingerprint))]
        summary = summarise(found, expected=[job.cell for job in jobs])
        reasons = [f"left out: {reason}" for reason in left_out.values()]
        summary.write(folder, [*header_lines(rows, settings, found), *reasons])
    return Outcome(rows, summary, found, [folder])


def run_folder(rows: Sequence[Row], settings: Mapping[str, Setting]) -> Path:
    """Return the folder of a run: one per data set, source model and protocol, and one per set of swept keys.

    Note: a sweep's folder is named after the swept keys, or after their number and hash if they are too long; what the
    sweep changes is left out of the rest of the name.
    """
    names = {
        (row.cfg.CORRUPTION.DATASET, row.cfg.MODEL.ARCH, settings[row.label].loaded.sha256[:8], protocol_name(row.cfg))
        for row in rows
    }
    parts = [values[0] for values in map(list, map(dict.fromkeys, zip(*names, strict=True))) if len(values) == 1]
    swept = sorted({key for row in rows for key, _ in row.changes})
    if len("-".join(swept)) > _LONGEST_SWEEP:
        swept = [f"{len(swept)}-keys", sha256_text(" ".join(swept))[:8]]
    name = "-".join([*parts, *(["by", *swept] if swept else [])])
    return Path(rows[0].cfg.SAVE_DIR) / name.replace("/", "_")


def write_description(
    folder: Path, rows: Sequence[Row], settings: Mapping[str, Setting], fingerprints: Mapping[str, str]
) -> None:
    """Write the resolved configs and ``run.json``: versions, machine, hashes."""
    for row in rows:
        write_text(config_path(folder, row.method, fingerprints[row.label]), dump_yaml(row.cfg))
    first, setting = rows[0].cfg, settings[rows[0].label]
    subspaces = {label: one.subspace for label, one in settings.items() if one.subspace is not None}
    description = {
        "schema": 1,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "config": to_dict(first),
        "dataset": setting.benchmark.describe(),
        "model_sha256": setting.loaded.sha256,
        "subspace_sha256": subspace_hash(next(iter(subspaces.values()), None)),
        "versions": versions(),
        "machine": machine(str(setting.device)),
        "git_revision": git_revision(Path(__file__).parent),
        "extra": {
            "protocol": protocol_name(first),
            "seeds": seeds(first),
            "model_origin": setting.loaded.origin,
            "rows": [row.label for row in rows],  # in order, whereas the keys of a mapping are sorted
            "fingerprints": dict(fingerprints),
            "models": {label: one.loaded.sha256 for label, one in settings.items()},
            "sweep": {row.label: dict(row.changes) for row in rows if row.changes},
            "subspaces": {
                label: {"sha256": subspace_hash(subspace), **subspace.provenance}
                for label, subspace in subspaces.items()
            },
        },
    }
    write_run_file(folder, description)


def header_lines(rows: Sequence[Row], settings: Mapping[str, Setting], records: Sequence[Record]) -> list[str]:
    """Return the lines above the table: data, model, protocol and seeds, one line per combination, and optimisers."""
    lines = []
    for row in rows:
        model = f"{row.cfg.MODEL.ARCH} (sha256 {settings[row.label].loaded.sha256[:16]})"
        lines.append(about_data(row.cfg, [record for record in records if record.cell.label == row.label], model))
    own = [row for row in rows if "OPTIM.LR" in own_keys(row.method)]
    optimisers = [f"{row.label} {row.cfg.OPTIM.METHOD} {row.cfg.OPTIM.LR:g}" for row in own]
    return [*dict.fromkeys(lines), *(["optimiser: " + ", ".join(optimisers)] if own else [])]


def about_data(cfg: CfgNode, records: Sequence[Record], model: str) -> str:
    """Return a line: data, model, protocol and seeds."""
    unit, how = ("stream", "stream") if is_stream(cfg) else ("domain", "protocol")
    epochs = f", {cfg.TEST.EPOCHS} epochs" if cfg.TEST.PROTOCOL != "online" else ""
    return (
        f"{cfg.CORRUPTION.DATASET}, {sample_range(records)} samples per {unit}; {model}; "
        f"{protocol_name(cfg)} {how}{epochs}, batch {cfg.TEST.BATCH_SIZE}; seeds {', '.join(map(str, seeds(cfg)))}"
    )


def _warn(rows: Sequence[Row], settings: Mapping[str, Setting]) -> None:
    """Warn of set-ups that cannot be right, once per source model, data and subspace."""
    looked: set[tuple[str, int, str | None]] = set()
    for row in rows:
        setting = settings[row.label]
        key = setting.loaded.sha256, id(setting.benchmark), subspace_hash(setting.subspace)
        if key not in looked and (key[2] is not None or key[:2] not in {seen[:2] for seen in looked}):
            warn_of_wrong_setup(row.cfg, setting)
            looked.add(key)


def _jobs(
    rows: Sequence[Row], settings: Mapping[str, Setting], fingerprints: Mapping[str, str], folder: Path
) -> list[Job]:
    """Return the jobs of all cells; a fingerprint is that of the row plus the identity of the domain's files, if any.

    Note: the identity is per domain, so that adding a corruption to a folder recomputes no cell of the others.
    """
    known: dict[tuple[int, Domain], str] = {}
    jobs = []
    for row in rows:
        benchmark = settings[row.label].benchmark
        for cell in plan_cells(row, benchmark.domains()):
            key = (id(benchmark), cell.target)
            if key not in known:
                known[key] = _data_identity(row.cfg, benchmark, cell.target)
            stamp = "-".join(filter(None, (fingerprints[row.label], known[key])))
            jobs.append(Job(row.cfg, cell, stamp, checkpoint_path(folder, cell, stamp)))
    return jobs


def _data_identity(cfg: CfgNode, benchmark: Benchmark, domain: Domain) -> str:
    return stream_identity(cfg, benchmark) if is_stream(cfg) else benchmark.identity(domain)


def _compute(
    jobs: Sequence[Job], store: ResultsStore, settings: Mapping[str, Setting], launcher: Launcher
) -> dict[str, str]:
    """Compute the cells that the store lacks, and log each domain's error in TENT's format once all seeds are done.

    Return the rows that a host's method could not compute, with the reasons.
    """
    left_out: dict[str, str] = {}
    there = {job.cell: stored for job in jobs if (stored := store.find(job.cell, job.fingerprint))}
    missing = {job.cell: job for job in jobs if job.cell not in there}
    if there:
        logger.info("%d of %d results are there already", len(there), len(jobs))
    wanted = Counter((job.cell.label, job.cell.target) for job in jobs)
    logger.info("below is the error of each domain, 100 % - accuracy, as in TENT's logs; the table has the accuracy")
    shown = ""
    accuracies: dict[tuple[str, Domain], list[float]] = defaultdict(list)
    with progress(None, len(jobs), "results") as bar:
        for record in chain(there.values(), launcher(list(missing.values()), settings)):
            cell = record.cell
            if isinstance(record, Fault):
                if cell.label not in left_out:
                    left_out[cell.label] = record.reason
                    logger.warning("left out: %s", record.reason)
                continue
            if cell in missing:
                _keep(record, missing[cell].cfg, settings[cell.label].benchmark, store)
            bar.update()  # raises after Ctrl-C, so the result must be on disk by now
            if lost := record.info.get("lost"):
                logger.warning(
                    "%s on %s: %d of %d outputs are not finite and count as wrong",
                    cell.label, cell.target.label, lost, record.metrics["n"],
                )  # fmt: skip
            if resets := record.info.get("safety_resets"):
                logger.warning("%s on %s: resets by SAFETY: %d", cell.label, cell.target.label, resets)
            found = accuracies[cell.label, cell.target]
            found.append(record.metrics.get("accuracy", float("nan")))
            if len(found) == wanted[cell.label, cell.target]:  # a line per domain, as in TENT: the mean over the seeds
                if cell.label != shown:
                    shown = cell.label
                    logger.info("test-time adaptation: %s", row_label(cell.method.upper(), cell.settings))
                logger.info(error_line(cell.target.label, sum(found) / len(found)))
    return left_out


def _keep(record: Record, cfg: CfgNode, benchmark: Benchmark, store: ResultsStore) -> None:
    """Write a result to disk, and remove its checkpoint.

    Note: the files are identified before the run and read during it. If they changed in between, the result belongs to
    neither version, so it is refused.
    """
    cell = record.cell
    unchanged = record.fingerprint.endswith(_data_identity(cfg, benchmark, cell.target))
    if unchanged:
        store.append(record)
    checkpoint_path(store.folder, cell, record.fingerprint).unlink(missing_ok=True)
    if not unchanged:
        raise UserError(
            f"{cell.target.label}: files in {cfg.DATA_DIR} changed while {cell.label} ran on them: its result is "
            "not kept; run the same command again"
        )
