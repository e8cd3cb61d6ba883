"""Compute one cell and measure its cost, or all cells one after the other."""

from __future__ import annotations

import copy
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tta_cattan.bench.data import Stream, stream_of
from tta_cattan.bench.protocols import accuracy_without_updates, run_offline, run_online, run_recovery, run_stream
from tta_cattan.bench.protocols.stream import WINDOW
from tta_cattan.bench.results.store import Cell, Record
from tta_cattan.bench.run.plan import Job, is_stream
from tta_cattan.bench.run.setting import Setting
from tta_cattan.host.checkout import HostError
from tta_cattan.methods import AdaptationMethod, Source, Tent, setup_model
from tta_cattan.methods.safety import Safety
from tta_cattan.monitor import EVENTS, Monitor
from tta_cattan.network.normalization import StreamStatistics, affine_parameters
from tta_cattan.network.ownership import copy_for_adaptation, own_free_parameters
from tta_cattan.util.errors import UserError, raise_if_interrupted
from tta_cattan.util.memory import give_back_freed_memory
from tta_cattan.util.progress import progress

_CLEAN = 1000  # samples without shift that a monitor is fitted to
# Metrics that change when a cell is computed again.
COST_METRICS = ("seconds", "images_per_second", "peak_memory")
_PROC = Path("/proc/self")
# Not counted as stored: what every method has, TENT included, and what is not part of the state that it adapts.
_COMMON = (torch.optim.Optimizer, Safety, type)


class Fault(NamedTuple):
    """A cell that a host's method could not compute, and why."""

    cell: Cell
    reason: str


def run_cell(job: Job, setting: Setting) -> Record | Fault:
    """Compute one cell; the result depends only on its config, its seed and the setting."""
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
    # Started only now: data read eagerly, and what torch loads once, must not count as a cost of the first method.
    meter = Meter(setting.device)
    if cfg.TEST.PROTOCOL == "offline":
        part, epochs = _adapted_part(stream, cfg.TEST.ADAPT_EX, cell.seed), cfg.TEST.EPOCHS
        updates = len(part) * epochs if method.optimizer is not None else 0
        with progress(None, updates + len(stream), name) as bar:

            def step() -> None:
                now = f"epoch {bar.n // len(part) + 1} of {epochs}" if bar.n < updates else "predicting"
                bar.set_postfix_str(now, refresh=False)
                bar.update()

            evaluation = run_offline(method, stream, epochs, step, part)
    else:
        with progress(None, len(stream), name) as bar:
            evaluation = run_online(method, stream, bar.update)
    metrics = {**evaluation.metrics(), **meter.metrics(len(dataset))}
    metrics["extra_bytes"] = stored_bytes(method) - tent_bytes(setting.loaded.model)
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
        metrics["extra_bytes"] = stored_bytes(method) - tent_bytes(setting.loaded.model)
        info = {**method.describe(), **evaluation.facts(), "adapted_every": every}
        if clean is not None:
            after = Stream(clean, cfg.TEST.BATCH_SIZE, cell.seed, setting.device, cfg.TEST.NUM_WORKERS)
            metrics["clean_accuracy"] = accuracy_without_updates(method, after, raise_if_interrupted)
    return Record(cell, job.fingerprint, metrics, info, evaluation.predictions())


def _monitor(method: AdaptationMethod, clean: Dataset | None, job: Job, setting: Setting) -> Monitor:
    """Return a monitor fitted to the first samples without shift; it only observes."""
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


def one_by_one(jobs: Sequence[Job], settings: Mapping[str, Setting]) -> Iterator[Record | Fault]:
    """Yield the record of each cell, computed in this process in the given order; a row stops at its first fault."""
    faulty = set()
    for job in jobs:
        if job.cell.label not in faulty:
            result = run_cell(job, settings[job.cell.label])
            if isinstance(result, Fault):
                faulty.add(job.cell.label)
            yield result


class Meter:
    """Measures time and peak memory from its creation on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._started = time.perf_counter()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            give_back_freed_memory()
            with suppress(OSError):  # Linux can reset the peak; elsewhere it is that of the whole process
                (_PROC / "clear_refs").write_text("5")

    def metrics(self, images: int, earlier: float = 0.0) -> dict[str, float]:
        """Return the seconds, images per second and, where the system reports it, the peak memory in bytes.

        ``earlier`` is the time in seconds that was spent before an interruption.
        """
        seconds = earlier + time.perf_counter() - self._started
        cost = {"seconds": seconds, "images_per_second": images / seconds}
        peak = self._peak_memory()
        return cost if peak is None else {**cost, "peak_memory": peak}

    def _peak_memory(self) -> int | None:
        """Return the peak memory in bytes: torch's allocations on a GPU, the process's resident set elsewhere."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        with suppress(OSError):
            found = re.search(r"VmHWM:\s*(\d+) kB", (_PROC / "status").read_text(encoding="ascii"))
            if found:
                return int(found[1]) * 1024
        try:
            import resource
        except ImportError:  # Windows
            return None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def stored_bytes(method: AdaptationMethod) -> int:
    """Return the bytes of all tensors that a method holds, including its model's but no optimiser state or gradients.

    Note: shared memory counts once; what only ``fold`` reads is the same in all methods and does not count.
    """
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(method, set())}
    return sum(storages.values())


@lru_cache(maxsize=4)
def tent_bytes(model: nn.Module) -> int:
    """Return the bytes that TENT would store for ``model``; without normalisation layers, the model's alone."""
    kept = copy_for_adaptation(model)
    return stored_bytes(Tent(kept) if affine_parameters(kept)[0] else Source(kept))


def relative_cost(method: AdaptationMethod, source: nn.Module, x: Tensor) -> int:
    """Return the operations of one adapting forward in predictions of the source model, rounded up.

    Note: operations, not seconds, so that a config gives the same result on every machine. ``method`` is unchanged.
    """
    from torch.utils.flop_counter import FlopCounterMode

    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        with FlopCounterMode(display=False) as adapting:
            copy.deepcopy(method)(x)
        with FlopCounterMode(display=False) as predicting, torch.no_grad():
            copy_for_adaptation(source).eval()(x)
    return max(1, -(-adapting.get_total_flops() // max(1, predicting.get_total_flops())))


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Yield every tensor that can be reached from ``value`` through modules, containers and objects of this package."""
    if isinstance(value, Tensor):
        yield value
        return
    if id(value) in seen or isinstance(value, (*_COMMON, StreamStatistics)):
        return
    seen.add(id(value))
    inside: Any = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, (list, tuple, set)):
        inside = value
    elif isinstance(value, nn.Module) or type(value).__module__.startswith("tta_cattan."):
        inside = getattr(value, "__dict__", {}).values()
    for part in inside:
        yield from _tensors(part, seen)
