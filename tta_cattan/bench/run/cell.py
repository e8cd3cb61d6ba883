"""Computing one cell, and all of them one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset

from tta_cattan.bench.data import Stream, stream_of
from tta_cattan.bench.protocols import accuracy_without_updates, run_offline, run_online, run_recovery, run_stream
from tta_cattan.bench.protocols.stream import WINDOW
from tta_cattan.bench.results.store import Cell, Record
from tta_cattan.bench.run.cost import Meter, relative_cost, stored_bytes
from tta_cattan.bench.run.plan import Job, is_stream
from tta_cattan.bench.run.setting import Setting
from tta_cattan.host.checkout import HostError
from tta_cattan.methods import AdaptationMethod, setup_model
from tta_cattan.monitor import EVENTS, Monitor
from tta_cattan.network.ownership import copy_for_adaptation, own_free_parameters
from tta_cattan.util.errors import UserError, raise_if_interrupted
from tta_cattan.util.memory import keep_freed_memory
from tta_cattan.util.progress import progress
from tta_cattan.util.registry import load_plugins

_CLEAN = 1000  # samples without shift that a monitor is fitted to


class Fault(NamedTuple):
    """A cell that a method of a host could not compute, and why."""

    cell: Cell
    reason: str


def run_cell(job: Job, setting: Setting) -> Record | Fault:
    """Compute one cell: it depends on nothing but its config, its seed and the setting."""
    try:
        return _record(job, setting)
    except HostError as fault:
        return Fault(job.cell, str(fault))


def _record(job: Job, setting: Setting) -> Record:
    cfg, cell, source = job.cfg, job.cell, setting.loaded.model

    def make() -> AdaptationMethod:
        torch.manual_seed(cell.seed)
        model = copy_for_adaptation(source)
        method = setup_model(model, cfg, setting.benchmark.num_classes, setting.subspace)
        own_free_parameters(method, source)
        return method

    if is_stream(cfg):
        return _run_stream_cell(job, setting, make)
    dataset = setting.benchmark.target(cell.target, cell.seed)
    order = cell.seed if cfg.TEST.ORDER == "seeded" else None
    stream = Stream(dataset, cfg.TEST.BATCH_SIZE, order, setting.device, cfg.TEST.NUM_WORKERS)
    name = f"{cell.label} {cell.target.label} seed {cell.seed}"
    if cfg.TEST.PROTOCOL == "recovery":
        plain, meter = copy_for_adaptation(source), Meter(setting.device)
        with progress(None, None, name) as bar:
            metrics, info = run_recovery(make, plain, setting.benchmark, stream, cfg, cell.seed, bar.update)
        return Record(cell, job.fingerprint, {**metrics, **meter.metrics(len(dataset))}, info)
    method = make()
    # Data that is made or read at once is no cost of the method that comes first, nor is what torch loads for it.
    meter = Meter(setting.device)
    if cfg.TEST.PROTOCOL == "offline":
        part, epochs = _adapted_part(stream, cfg.TEST.ADAPT_EX, cell.seed), cfg.TEST.EPOCHS
        updates = len(part) * epochs if method.optimizer is not None else 0
        with progress(None, updates + len(stream), name) as bar:

            def say() -> None:
                now = f"epoch {bar.n // len(part) + 1} of {epochs}" if bar.n < updates else "predicting"
                bar.set_postfix_str(now, refresh=False)

            def step() -> None:
                bar.update()
                if bar.n % len(part) == 0 and bar.n <= updates:
                    say()

            say()
            evaluation = run_offline(method, stream, epochs, step, part)
    else:
        with progress(None, len(stream), name) as bar:
            evaluation = run_online(method, stream, bar.update)
    metrics = {**evaluation.metrics(), **meter.metrics(len(dataset))}
    metrics["extra_bytes"] = stored_bytes(method) - setting.tent_bytes
    info = {**method.describe(), **evaluation.facts()}
    return Record(cell, job.fingerprint, metrics, info, evaluation.predictions())


def _run_stream_cell(job: Job, setting: Setting, make: Callable[[], AdaptationMethod]) -> Record:
    cfg, cell = job.cfg, job.cell
    stream, clean = stream_of(cfg, setting.benchmark, cell.seed, setting.device), setting.benchmark.clean(cell.seed)
    monitor = _monitor(make(), clean, job, setting) if cfg.STREAM.MONITOR else None
    method = make()
    meter = Meter(setting.device)
    with progress(None, len(stream), f"{cell.label} seed {cell.seed}") as bar:
        every = 1
        if not cfg.STREAM.WAITS:
            every = relative_cost(method, setting.loaded.model, next(stream.batches())[1].inputs)
        evaluation = run_stream(method, stream, job.checkpoint, bar.update, every, monitor)
        metrics = {**evaluation.metrics(), **meter.metrics(len(stream.plan), evaluation.earlier_seconds)}
        metrics["extra_bytes"] = stored_bytes(method) - setting.tent_bytes
        info = {**method.describe(), **evaluation.facts(), "adapted_every": every}
        if clean is not None:
            after = Stream(clean, cfg.TEST.BATCH_SIZE, cell.seed, setting.device, cfg.TEST.NUM_WORKERS)
            metrics["clean_accuracy"] = accuracy_without_updates(method, after, raise_if_interrupted)
    return Record(cell, job.fingerprint, metrics, info, evaluation.predictions())


def _monitor(method: AdaptationMethod, clean: Dataset | None, job: Job, setting: Setting) -> Monitor:
    """Return a monitor fitted to the first samples without shift; it only looks on."""
    if clean is None:
        raise UserError("STREAM.MONITOR needs data without shift, and this benchmark has none at hand: set it to False")
    cfg = job.cfg
    source = Stream(clean, cfg.TEST.BATCH_SIZE, job.cell.seed, setting.device, cfg.TEST.NUM_WORKERS)
    batches = ((batch.inputs, batch.labels) for batch in islice(source, -(-_CLEAN // cfg.TEST.BATCH_SIZE)))
    quiet: dict[str, Any] = {f"on_{event}": "ignore" for event in EVENTS}
    return Monitor.fit(method, batches, window=WINDOW, **quiet)


def _adapted_part(stream: Stream, n: int, seed: int) -> Stream:
    """Return ``n`` samples of the stream (-1: all), chosen by the seed."""
    if n < 0:
        return stream
    order = torch.randperm(len(stream.dataset), generator=torch.Generator().manual_seed(seed))
    return stream.restricted(order[:n])


def begin_worker(modules: Sequence[str], hosts: Mapping[str, Sequence[str]]) -> None:
    """Make this process a worker: one thread, and the plug-ins and hosts' methods of the process that sends cells."""
    from tta_cattan.bench.run.host_methods import borrow

    torch.set_num_threads(1)
    keep_freed_memory()
    load_plugins(modules)
    for path, names in hosts.items():
        borrow(path, names)


def one_by_one(jobs: Sequence[Job], settings: Mapping[str, Setting]) -> Iterator[Record | Fault]:
    """Yield the record of each cell, computed in this process in the order given; a row ends with its first fault."""
    faulty = set()
    for job in jobs:
        if job.cell.label not in faulty:
            result = run_cell(job, settings[job.cell.label])
            if isinstance(result, Fault):
                faulty.add(job.cell.label)
            yield result
