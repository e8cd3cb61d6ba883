"""Running a comparison: what is missing is computed, what is there is used again."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tta_cattan.config import dump_yaml, to_dict
from tta_cattan.config.tree import leaves
from tta_cattan.data import BENCHMARK_REGISTRY, Benchmark, Stream
from tta_cattan.errors import UserError
from tta_cattan.files import sha256_tensors, write_text
from tta_cattan.methods import ADAPTATION_REGISTRY, setup_model
from tta_cattan.models.checkpoints import read_checkpoint
from tta_cattan.models.zoo import LoadedModel, check_arch, resolve_device
from tta_cattan.progress import progress
from tta_cattan.protocols import Evaluation, run_offline, run_online
from tta_cattan.runs.identity import describe_run, write_run_file
from tta_cattan.runs.log import error_line, setup_logging
from tta_cattan.runs.plan import Job, cell_fingerprint, plan_cells, seeds
from tta_cattan.runs.store import Cell, Record, ResultsStore
from tta_cattan.runs.summary import Summary, summarise
from tta_cattan.runs.tables import write_summary
from tta_cattan.source.subspace import check_source_basis, source_subspace
from tta_cattan.source.training import source_model
from tta_cattan.subspace import Subspace

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)

# What the methods of one comparison have in common, by the start of the key.
_SHARED = (
    "CKPT_DIR", "CORRUPTION.", "DATA.", "DATA_DIR", "DEVICE", "MODEL.ARCH", "MODEL.CKPT_PATH", "RNG_SEED", "SAVE_DIR",
    "SEEDS", "SOURCE.", "TEST.", "MIXED_PRECISION", "BN.",
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What all methods of a comparison share: the data, the source model and, where it is needed, its subspace."""

    benchmark: Benchmark
    loaded: LoadedModel
    device: torch.device
    subspaces: dict[str, Subspace | None]


def check_configs(configs: Sequence[CfgNode]) -> Benchmark:
    """Check all that can be checked before anything is computed, and return the benchmark."""
    first = configs[0]
    benchmark = BENCHMARK_REGISTRY.get(first.CORRUPTION.DATASET)(first)
    benchmark.check()
    check_arch(first.MODEL.ARCH, benchmark.family)
    resolve_device(first.DEVICE)
    for cfg in configs:
        _check_alike(first, cfg)
        method = ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION)
        if method.needs_images and not benchmark.images:
            raise UserError(f"MODEL.ADAPTATION = {cfg.MODEL.ADAPTATION!r} needs images, and {benchmark.name} has none")
    return benchmark


def check_files(configs: Sequence[CfgNode], benchmark: Benchmark) -> None:
    """Check the checkpoint and the source subspaces that a run would read, for a dry run."""
    if configs[0].MODEL.CKPT_PATH:
        read_checkpoint(configs[0].MODEL.CKPT_PATH)
    for cfg in configs:
        if ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION).needs_source_subspace:
            check_source_basis(cfg, benchmark)


def _check_alike(first: CfgNode, other: CfgNode) -> None:
    """Refuse to compare methods whose files ask for other data, another model or another protocol."""
    one, two = dict(leaves(first)), dict(leaves(other))
    for key in one:
        if key.startswith(_SHARED) and one[key] != two[key]:
            raise UserError(
                f"{first.MODEL.ADAPTATION} has {key} = {one[key]!r} and {other.MODEL.ADAPTATION} has {two[key]!r}: "
                f"methods are compared on one thing at a time; give {key} on the command line"
            )


def prepare_setting(configs: Sequence[CfgNode], benchmark: Benchmark) -> Setting:
    """Load or train the source model and find or fit the source subspace."""
    loaded = source_model(configs[0], benchmark)
    subspaces = {
        cfg.MODEL.ADAPTATION: source_subspace(cfg, loaded, benchmark)
        for cfg in configs
        if ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION).needs_source_subspace
    }
    return Setting(benchmark, loaded, resolve_device(configs[0].DEVICE), subspaces)


def run_cell(job: Job, cell: Cell, setting: Setting) -> Record:
    """Compute one cell: it depends on nothing but its config, its seed and the setting."""
    cfg = job.cfg
    started = time.perf_counter()
    torch.manual_seed(cell.seed)
    method = setup_model(
        copy.deepcopy(setting.loaded.model), cfg, setting.benchmark.num_classes, setting.subspaces.get(job.method)
    )
    dataset = setting.benchmark.target(cell.target)
    order = cell.seed if cfg.TEST.ORDER == "seeded" else None
    stream = Stream(dataset, cfg.TEST.BATCH_SIZE, order, setting.device, cfg.TEST.NUM_WORKERS)
    with progress(None, None, f"{cell.method} {cell.label} seed {cell.seed}") as bar:
        if cfg.TEST.PROTOCOL == "offline":
            evaluation: Evaluation = run_offline(method, stream, cfg.TEST.EPOCHS, bar.update)
        else:
            evaluation = run_online(method, stream, bar.update)
    metrics = {**evaluation.metrics(), "seconds": time.perf_counter() - started}
    return Record(cell, job.fingerprint, metrics, method.describe())


def run(configs: Sequence[CfgNode], dry_run: bool = False) -> tuple[Summary, Path] | None:
    """Run the comparison of ``configs`` (one per method) and return its summary and folder; None for a dry run."""
    benchmark = check_configs(configs)
    if dry_run:
        check_files(configs, benchmark)
        cells = plan_cells([Job(cfg, "") for cfg in configs], benchmark.domains())
        logger.info("dry run: %d cells would be computed; the configuration and the data are in order", len(cells))
        return None
    torch.backends.cudnn.benchmark = configs[0].CUDNN.BENCHMARK
    setting = prepare_setting(configs, benchmark)
    jobs = [Job(cfg, _fingerprint(cfg, setting)) for cfg in configs]
    cells = plan_cells(jobs, benchmark.domains())
    folder = run_folder(configs[0], setting)
    store = ResultsStore(folder)
    with store.lock():
        setup_logging(folder, configs[0].LOG_DEST)
        loaded = setting.loaded
        logger.info("source model: %s, sha256 %s, from %s", configs[0].MODEL.ARCH, loaded.sha256[:16], loaded.origin)
        _describe(folder, jobs, setting)
        _compute(cells, store, setting)
        found = [record for job, cell in cells if (record := store.find(cell, job.fingerprint))]
        summary = summarise(found, expected=[cell for _, cell in cells])
        write_summary(folder, summary, _header(configs, setting, found))
    return summary, folder


def run_folder(cfg: CfgNode, setting: Setting) -> Path:
    """Return the folder of a run: one per data set, source model and protocol."""
    name = f"{cfg.CORRUPTION.DATASET}-{cfg.MODEL.ARCH}-{setting.loaded.sha256[:8]}-{cfg.TEST.PROTOCOL}"
    return Path(cfg.SAVE_DIR) / name.replace("/", "_")


def _compute(cells: Sequence[tuple[Job, Cell]], store: ResultsStore, setting: Setting) -> None:
    """Compute the cells that the store lacks, log each domain's error in TENT's format."""
    done = sum(store.find(cell, job.fingerprint) is not None for job, cell in cells)
    if done:
        logger.info("%d of %d cells are there already", done, len(cells))
    shown, accuracies = "", []
    for job, cell in progress(cells, len(cells), "cells"):
        if job.method != shown:
            shown = job.method
            logger.info("test-time adaptation: %s", shown.upper())
        record = store.find(cell, job.fingerprint)
        if record is None:
            record = run_cell(job, cell, setting)
            store.append(record)
        accuracies.append(record.metrics["accuracy"])
        if cell.seed == seeds(job.cfg)[-1]:  # one line per domain, as TENT has it: the mean over the seeds
            logger.info(error_line(cell.label, sum(accuracies) / len(accuracies)))
            accuracies = []


def _fingerprint(cfg: CfgNode, setting: Setting) -> str:
    digest = _subspace_hash(setting.subspaces.get(cfg.MODEL.ADAPTATION))
    return cell_fingerprint(cfg, setting.loaded.sha256, digest, setting.benchmark.describe(), setting.device.type)


def _subspace_hash(subspace: Subspace | None) -> str | None:
    """Return the hash of all that a method reads of a subspace."""
    if subspace is None:
        return None
    tensors = {"basis": subspace.basis, "eigenvalues": subspace.eigenvalues, "count": torch.tensor(subspace.count)}
    return sha256_tensors(tensors if subspace.mean is None else {**tensors, "mean": subspace.mean})


def _describe(folder: Path, jobs: Sequence[Job], setting: Setting) -> None:
    """Write what the run is beside its results: the resolved configs, versions, hashes."""
    for job in jobs:
        write_text(folder / f"config-{job.method}-{job.fingerprint}.yaml", dump_yaml(job.cfg))
    first = jobs[0].cfg
    write_run_file(
        folder,
        describe_run(
            config=to_dict(first),
            dataset=setting.benchmark.describe(),
            model_hash=setting.loaded.sha256,
            subspace_hash=_subspace_hash(next(filter(None, setting.subspaces.values()), None)),
            device=str(setting.device),
            source_folder=Path(__file__).parent,
            extra={
                "protocol": first.TEST.PROTOCOL,
                "seeds": seeds(first),
                "model_origin": setting.loaded.origin,
                "fingerprints": {job.method: job.fingerprint for job in jobs},
                "subspaces": {
                    name: {"sha256": _subspace_hash(subspace), **subspace.provenance}
                    for name, subspace in setting.subspaces.items()
                    if subspace is not None
                },
            },
        ),
    )


def _header(configs: Sequence[CfgNode], setting: Setting, records: Sequence[Record]) -> list[str]:
    """Return the lines that say what the table is of."""
    cfg = configs[0]
    numbers = sorted({int(record.metrics["n"]) for record in records})
    images = f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"
    epochs = f", {cfg.TEST.EPOCHS} epochs" if cfg.TEST.PROTOCOL == "offline" else ""
    model = f"{cfg.MODEL.ARCH} (sha256 {setting.loaded.sha256[:16]})"
    return [
        f"{cfg.CORRUPTION.DATASET}, {images} images per domain; {model}; "
        f"{cfg.TEST.PROTOCOL} protocol{epochs}, batch {cfg.TEST.BATCH_SIZE}; seeds {', '.join(map(str, seeds(cfg)))}",
        "optimiser: " + ", ".join(f"{c.MODEL.ADAPTATION} {c.OPTIM.METHOD} {c.OPTIM.LR:g}" for c in configs),
    ]
