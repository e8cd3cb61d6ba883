"""Computing one cell, and all of them one after the other."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence

import torch

from tta_cattan.data import Stream
from tta_cattan.methods import setup_model
from tta_cattan.progress import progress
from tta_cattan.protocols import Evaluation, run_offline, run_online
from tta_cattan.runs.plan import Job
from tta_cattan.runs.setting import Setting
from tta_cattan.runs.store import Cell, Record


def run_cell(job: Job, cell: Cell, setting: Setting) -> Record:
    """Compute one cell: it depends on nothing but its config, its seed and the setting."""
    cfg = job.cfg
    started = time.perf_counter()
    torch.manual_seed(cell.seed)
    method = setup_model(copy.deepcopy(setting.loaded.model), cfg, setting.benchmark.num_classes, setting.subspace)
    dataset = setting.benchmark.target(cell.target)
    order = cell.seed if cfg.TEST.ORDER == "seeded" else None
    stream = Stream(dataset, cfg.TEST.BATCH_SIZE, order, setting.device, cfg.TEST.NUM_WORKERS)
    with progress(None, None, f"{cell.method} {cell.label} seed {cell.seed}") as bar:
        if cfg.TEST.PROTOCOL == "offline":
            evaluation: Evaluation = run_offline(method, stream, cfg.TEST.EPOCHS, bar.update)
        else:
            evaluation = run_online(method, stream, bar.update)
    metrics = {**evaluation.metrics(), "seconds": time.perf_counter() - started}
    sweep = {"sweep": dict(job.changes)} if job.changes else {}
    return Record(cell, job.fingerprint, metrics, {**method.describe(), **sweep})


def one_by_one(cells: Sequence[tuple[Job, Cell]], settings: Mapping[str, Setting]) -> Iterator[Record]:
    """Yield the record of each cell, computed in this process in the order given."""
    for job, cell in cells:
        yield run_cell(job, cell, settings[job.label])
