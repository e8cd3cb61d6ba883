"""Computing cells in several processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from tta_cattan.bench.results.store import Record
from tta_cattan.bench.run.cell import Fault, run_cell
from tta_cattan.bench.run.host_methods import borrow, borrowed
from tta_cattan.bench.run.plan import Job
from tta_cattan.bench.run.setting import Setting
from tta_cattan.util.allocator import keep_freed_memory
from tta_cattan.util.errors import UserError
from tta_cattan.util.plugins import imported_modules, load_plugins
from tta_cattan.util.progress import hide_progress


@dataclass(frozen=True)
class ProcessLauncher:
    """Computes one cell per process and CPU thread, in ``workers`` processes.

    Note: messages are pickled here, because torch would hand over tensors as open files.
    """

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"--workers {self.workers}: at least 1 is needed")

    def __call__(self, jobs: Sequence[Job], settings: Mapping[str, Setting]) -> Iterator[Record | Fault]:
        """Yield the record of each cell as it is finished."""
        waiting = list(reversed(jobs))
        busy: dict[Any, BaseProcess] = {}
        beginning = pickle.dumps((dict(settings), imported_modules(), borrowed()))
        processes = []
        try:
            for _ in range(min(self.workers, len(jobs))):
                connection, process = _start(beginning)
                processes.append(process)
                busy[connection] = process
                connection.send_bytes(pickle.dumps(waiting.pop()))
            while busy:
                ready: list[Any] = wait(list(busy))
                for connection in ready:
                    yield _received(connection, busy[connection])
                    if waiting:
                        connection.send_bytes(pickle.dumps(waiting.pop()))
                    else:
                        del busy[connection]
                        connection.close()
        finally:
            for process in processes:  # on an error or Ctrl-C the others are not waited for
                if busy:
                    process.kill()
                process.join()


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(beginning: bytes) -> tuple[Any, BaseProcess]:
    """Return a new worker and the connection to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    ours.send_bytes(beginning)
    return ours, process


def _received(connection: Any, process: BaseProcess) -> Record | Fault:
    """Return a worker's record, or raise what it raised."""
    try:
        answer = pickle.loads(connection.recv_bytes())
    except (EOFError, ConnectionError) as error:
        process.join()
        raise UserError(
            f"a worker process was lost (exit code {process.exitcode}), most likely for lack of memory: use fewer "
            "(--workers); run the same command to resume"
        ) from error
    if isinstance(answer, (Record, Fault)):
        return answer
    raised, text = answer
    raise raised from None if isinstance(raised, UserError) else RuntimeError(f"in a worker process:\n{text}")


def _work(connection: Connection) -> None:
    """Compute cells until there are no more; a parent that is gone ends it too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends us
    torch.set_num_threads(1)
    keep_freed_memory()
    hide_progress()
    with suppress(EOFError, ConnectionError):
        settings, modules, hosts = pickle.loads(connection.recv_bytes())
        load_plugins(modules)
        for path, names in hosts.items():
            borrow(path, names)
        while True:
            job = pickle.loads(connection.recv_bytes())
            answer: Any
            try:
                answer = run_cell(job, settings[job.cell.label])
            except Exception as error:
                answer = (error, traceback.format_exc())
            connection.send_bytes(pickle.dumps(answer))
