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

from tta_cattan.bench.results.store import Record
from tta_cattan.bench.run.cell import Fault, begin_worker, run_cell
from tta_cattan.bench.run.host_methods import borrowed
from tta_cattan.bench.run.plan import Job
from tta_cattan.bench.run.setting import Setting
from tta_cattan.util.errors import UserError
from tta_cattan.util.plugins import imported_modules
from tta_cattan.util.progress import hide_progress


@dataclass(frozen=True)
class ProcessLauncher:
    """Computes one cell per process and CPU thread, in ``workers`` processes."""

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"--workers {self.workers}: at least 1 is needed")

    def __call__(self, jobs: Sequence[Job], settings: Mapping[str, Setting]) -> Iterator[Record | Fault]:
        """Yield the record of each cell as it is finished."""
        waiting = list(reversed(jobs))
        busy: dict[Any, BaseProcess] = {}
        beginning = dict(settings), imported_modules(), borrowed()
        processes = []
        try:
            for _ in range(min(self.workers, len(jobs))):
                connection, process = _start(beginning)
                processes.append(process)
                busy[connection] = process
                _tell(connection, waiting.pop())
            while busy:
                ready: list[Any] = wait(list(busy))
                for connection in ready:
                    yield _received(connection, busy[connection])
                    if waiting:
                        _tell(connection, waiting.pop())
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


def _start(beginning: tuple[Any, ...]) -> tuple[Any, BaseProcess]:
    """Return a new worker and the connection to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    _tell(ours, beginning)
    return ours, process


def _tell(connection: Any, message: Any) -> None:
    """Send a message to the other end. It is pickled here, because torch would hand over tensors as open files."""
    connection.send_bytes(pickle.dumps(message))


def _told(connection: Any) -> Any:
    """Return a message from the other end: a process of this run, so nothing from outside is unpickled."""
    return pickle.loads(connection.recv_bytes())


def _received(connection: Any, process: BaseProcess) -> Record | Fault:
    """Return a worker's record, or raise what it raised."""
    try:
        answer = _told(connection)
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
    hide_progress()
    with suppress(EOFError, ConnectionError):
        settings, modules, hosts = _told(connection)
        begin_worker(modules, hosts)
        while True:
            job = _told(connection)
            answer: Any
            try:
                answer = run_cell(job, settings[job.cell.label])
            except Exception as error:
                answer = (error, traceback.format_exc())
            _tell(connection, answer)
