"""Compute cells elsewhere: in worker processes on this machine, or one cell per task on Ray."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import platform
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from tta_cattan.bench.results.identity import versions
from tta_cattan.bench.results.store import Cell, Record
from tta_cattan.bench.run.cell import Fault, run_cell
from tta_cattan.bench.run.host_methods import borrow, borrowed
from tta_cattan.bench.run.plan import Job
from tta_cattan.bench.run.setting import Setting
from tta_cattan.util.errors import UserError, first_line
from tta_cattan.util.memory import keep_freed_memory
from tta_cattan.util.progress import relay_progress, show_running
from tta_cattan.util.registry import imported_modules, load_plugins

logger = logging.getLogger(__name__)


class Home(NamedTuple):
    """What a worker shares with the process that sends it cells."""

    folder: str
    versions: Mapping[str, str]
    modules: Sequence[str]  # that register methods
    hosts: Mapping[str, Sequence[str]]  # names of borrowed methods, by the path of their checkout

    @classmethod
    def here(cls) -> Home:
        return cls(str(Path.cwd()), versions(), imported_modules(), borrowed())

    def enter(self) -> None:
        """Make this process a one-threaded worker; refuse other package versions, which make results incomparable."""
        here = versions()
        for name, version in self.versions.items():
            if here[name] != version:
                raise UserError(
                    f"a worker on {platform.node()} has {name} {here[name]} and the driver {version}: install the same "
                    "versions on every node"
                )
        if Path(self.folder).is_dir():  # paths in the config are relative to the driver's folder
            os.chdir(self.folder)
        torch.set_num_threads(1)
        keep_freed_memory()
        load_plugins(self.modules)
        for path, names in self.hosts.items():
            borrow(path, names)


@dataclass(frozen=True)
class ProcessLauncher:
    """Computes one cell per process and CPU thread, in ``workers`` processes."""

    workers: int

    def __call__(self, jobs: Sequence[Job], settings: Mapping[str, Setting]) -> Iterator[Record | Fault]:
        if not jobs:
            return
        # Pickled here, because torch would pass tensors on as open files.
        beginning = pickle.dumps((dict(settings), Home.here()))
        context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
        steps = context.SimpleQueue()
        running: dict[int, tuple[float, str]] = {}  # by worker id: the fraction done and the cell's name
        pool = ProcessPoolExecutor(min(self.workers, len(jobs)), context, _begin, (beginning, steps))
        pending = {pool.submit(_work, job) for job in jobs}
        try:
            while pending:
                done, pending = wait(pending, timeout=1, return_when=FIRST_COMPLETED)
                while not steps.empty():
                    worker, step = steps.get()
                    running.pop(worker, None)
                    running |= {worker: step} if step else {}
                show_running(running.values())
                for finished in done:
                    yield finished.result()
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process was lost, most likely for lack of memory: use fewer (--workers); run the same "
                "command to resume"
            ) from error
        finally:
            if pending:  # after an error, wait for no worker
                for process in set(multiprocessing.active_children()) - others:
                    process.kill()
            pool.shutdown(cancel_futures=True)


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_settings: dict[str, Setting] = {}  # of a worker process
_steps: Any = None  # queue for a worker's progress; None at the end of a cell


def _begin(beginning: bytes, steps: Any) -> None:
    """Make this process a worker that ends with its parent, however that ends."""
    global _steps
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    relay_progress(lambda *step: steps.put((os.getpid(), step)))
    settings, home = pickle.loads(beginning)  # from this run: nothing from outside is unpickled
    _settings.update(settings)
    _steps = steps
    home.enter()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _work(job: Job) -> Record | Fault:
    try:
        return run_cell(job, _settings[job.cell.label])
    finally:
        _steps.put((os.getpid(), None))


_STARTS = 3
_RETRIES = 3  # of a cell whose worker is lost; an error of the cell itself is not retried


@dataclass(frozen=True)
class RayLauncher:
    """Computes each cell as one Ray task on one CPU thread (and one GPU, where the device is CUDA).

    ``address=None`` starts Ray on this machine for the duration of the run, with ``workers`` processes (default: one
    per CPU). The driver stores the results; a task only returns its record. The constructor raises a UserError if Ray
    is not installed or the address does not answer.
    """

    address: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        import_ray()
        if self.address not in (None, "auto"):
            _check_answers(self.address)

    def __call__(self, jobs: Sequence[Job], settings: Mapping[str, Setting]) -> Iterator[Record | Fault]:
        if not jobs:
            return
        ray = import_ray()
        options: dict[str, Any] = {"address": self.address}
        if self.address is None:
            options = {"address": "local", "num_cpus": self.workers, "include_dashboard": False}
        _init_ray(ray, options, tries=_STARTS if self.address is None else 1)
        try:
            logger.info("Ray: %g CPUs, %g GPUs", *map(ray.cluster_resources().get, ("CPU", "GPU"), (0, 0)))
            yield from _finished(ray, jobs, settings)
        finally:
            ray.shutdown()


def _init_ray(ray: ModuleType, options: dict[str, Any], tries: int) -> None:
    """Start or join Ray, in up to ``tries`` attempts: Ray gives up after 30 seconds, too few on a busy machine."""
    for left in reversed(range(tries)):
        try:
            ray.init(**options, logging_level=logging.ERROR, log_to_driver=False)
            return
        except Exception as error:  # Ray raises a bare Exception if it does not start in time
            ray.shutdown()
            if not left:
                raise UserError(
                    f"Ray cannot be reached, address {options['address']!r}: {first_line(error)}"
                ) from error


def import_ray() -> ModuleType:
    """Return Ray, or say how to install it."""
    # Ray reads it at import; no usage statistics leave the machine unless its owner has asked for that.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise UserError("--launcher ray: Ray is not installed; `pip install 'tta-cattan[ray]'`") from error
    return ray


def _check_answers(address: str) -> None:
    """Refuse an address at which nothing listens: Ray itself would try for minutes and then end the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"--address {address!r}: give HOST:PORT of a Ray cluster, or 'auto' for the one on this node")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"nobody answers at {address!r} ({error}): start Ray there with `ray start --head`") from error


def _finished(ray: ModuleType, jobs: Sequence[Job], settings: Mapping[str, Setting]) -> Iterator[Record | Fault]:
    """Submit every cell and yield the records as they finish."""
    shared: dict[int, Any] = {}  # by id: rows that share a model or a subspace share one copy of it

    def put(value: Any) -> Any:
        if id(value) not in shared:
            shared[id(value)] = ray.put(value)
        return shared[id(value)]

    pending, home = {}, Home.here()
    for job in jobs:
        cell = job.cell
        setting = settings[cell.label]
        task = ray.remote(_compute).options(
            name=f"cell {cell.label} {cell.target.label} {cell.seed}",
            num_cpus=1,
            num_gpus=1 if setting.device.type == "cuda" else 0,
            max_retries=_RETRIES,
        )
        parts = [put(part) for part in (setting.benchmark, setting.loaded, setting.subspace)]
        pending[task.remote(job, setting.device, *parts, home)] = cell
    while pending:
        (done,), _ = ray.wait(list(pending), num_returns=1)
        yield _result(ray, done, pending.pop(done))


def _result(ray: ModuleType, reference: Any, cell: Cell) -> Record | Fault:
    """Return the record of a task, or raise its error; a task's UserError and a lost worker are UserErrors."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
        raise UserError(
            f"{cell}: its worker was lost {_RETRIES + 1} times, most likely for lack of memory: use fewer workers "
            "(--workers) or smaller batches; what is finished is kept"
        ) from error


def _compute(job: Job, device: torch.device, benchmark: Any, loaded: Any, subspace: Any, home: Home) -> Record | Fault:
    """Compute a cell in a worker."""
    home.enter()
    return run_cell(job, Setting(benchmark, loaded, device, subspace))
