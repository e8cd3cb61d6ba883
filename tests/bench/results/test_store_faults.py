"""The results store under kills, rivals and full disks."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tta_cattan.bench.results import store as store_module
from tta_cattan.bench.results.store import Cell, Record, ResultsStore
from tta_cattan.util.errors import UserError

ROOT = Path(store_module.__file__).resolve().parents[3]
N_CELLS = 120
RECORD = Record(Cell("tent", "gaussian_noise", 5, 0), "f0", {"accuracy": 0.5}, {})


def start_python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


# The disk of this child is slow: a line arrives in two halves, so that kills do fall between them.
FILL = f"""
    import os, signal, sys, time
    from tta_cattan.bench.results.store import Cell, Record, ResultsStore
    folder, die_at = sys.argv[1], int(sys.argv[2])
    written, whole_write = 0, os.write
    def slow_write(handle, data):
        global written
        written += 1
        whole_write(handle, data[: len(data) // 2])
        if written == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.004)
        return len(data) // 2 + whole_write(handle, data[len(data) // 2 :])
    os.write = slow_write
    store = ResultsStore(folder)
    with store.lock():
        print("started", flush=True)
        for seed in range({N_CELLS}):
            cell = Cell("tent", "fog", 5, seed)
            if store.find(cell, "f") is None:
                store.append(Record(cell, "f", {{"accuracy": seed / 10**6}}, {{"pad": "x" * 300}}))
    """


def test_killed_runs_continue_and_do_every_cell_once(tmp_path):
    chance = random.Random(0)
    for kill_from_outside in (False, True, False, True, False, False):
        child = start_python(FILL, tmp_path, 0 if kill_from_outside else chance.randint(1, 6))
        assert child.stdout.readline() == "started\n"
        if kill_from_outside:
            time.sleep(chance.uniform(0, 0.05))
            child.kill()
        assert child.wait(300) == -signal.SIGKILL
    assert ResultsStore(tmp_path).records() != []
    assert len(ResultsStore(tmp_path).records()) < N_CELLS, "the kills came too late to test anything"
    assert start_python(FILL, tmp_path, 0).wait(300) == 0

    store = ResultsStore(tmp_path)
    records = store.records()
    assert sorted(record.cell.seed for record in records) == list(range(N_CELLS))
    assert all(record.metrics["accuracy"] == record.cell.seed / 10**6 for record in records)
    assert store.skipped >= 4, "every kill from inside tears one line"
    assert len(store.path.read_bytes().splitlines()) == N_CELLS + store.skipped, "no cell was written twice"


HOLD = """
    import sys, time
    from tta_cattan.bench.results.store import ResultsStore
    with ResultsStore(sys.argv[1]).lock():
        print("locked", flush=True)
        time.sleep(60)
    """


def test_second_run_is_refused_until_the_first_is_gone_even_by_kill(tmp_path):
    child = start_python(HOLD, tmp_path)
    try:
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(UserError, match=f"process {child.pid} on ") as caught, ResultsStore(tmp_path).lock():
            pass
        assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
    finally:
        child.kill()
        child.wait(300)
    held = ResultsStore(tmp_path).lock()
    refused = pytest.raises(UserError, match=f"process {os.getpid()} on ")
    with held, refused, ResultsStore(tmp_path).lock():
        pass
    with ResultsStore(tmp_path).lock():
        pass


def test_lock_is_freed_when_the_run_fails(tmp_path):
    with pytest.raises(KeyboardInterrupt), ResultsStore(tmp_path).lock():
        raise KeyboardInterrupt
    with ResultsStore(tmp_path).lock():
        pass


def test_lock_forgets_what_was_read_before_it(tmp_path):
    store, other = ResultsStore(tmp_path), ResultsStore(tmp_path)
    assert store.find(*RECORD.key) is None
    other.append(RECORD)
    with store.lock():
        assert store.find(*RECORD.key) == RECORD


FILE_LIMIT = """
    import resource, sys
    from tta_cattan.util.errors import UserError
    from tta_cattan.bench.results.store import Cell, Record, ResultsStore
    store = ResultsStore(sys.argv[1])
    first, second = (Record(Cell("tent", "fog", 5, seed), "f", {"accuracy": 0.5}, {}) for seed in (0, 1))
    store.append(first)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (store.path.stat().st_size + 20, unlimited[1]))
    assert store.find(*second.key) is None
    for attempt in range(2):  # the first is cut short, the second gets nothing written
        try:
            store.append(second)
        except UserError as error:
            print(error)
    assert store.find(*second.key) is None and store.records() == [first]
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    store.append(second)
    assert store.records() == [first, second] and store.skipped == 1
    """


def test_full_disk_is_a_clear_error_and_leaves_nothing_that_looks_whole(tmp_path):
    child = start_python(FILE_LIMIT, tmp_path)
    output, _ = child.communicate(timeout=300)
    assert child.returncode == 0
    assert len(output.splitlines()) == 2
    assert all("free some space" in line and "results.jsonl" in line for line in output.splitlines())


def test_failed_sync_is_not_taken_for_success(tmp_path, monkeypatch):
    def fail(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=r"results.jsonl.*No space left"):
        ResultsStore(tmp_path).append(RECORD)


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file' is a file"):
        ResultsStore(tmp_path / "file")
    with pytest.raises(UserError, match="file stands where a folder"), ResultsStore(tmp_path / "file" / "run").lock():
        pass
    with pytest.raises(UserError, match="file stands where a folder"):
        ResultsStore(tmp_path / "file" / "run").append(RECORD)
    (tmp_path / "run" / "results.jsonl").mkdir(parents=True)
    with pytest.raises(UserError, match="is a folder, not a file"), ResultsStore(tmp_path / "run").lock():
        pass
    with pytest.raises(UserError, match="is a folder, not a file"):
        ResultsStore(tmp_path / "run").records()


@pytest.mark.parametrize("use", [lambda store: store.append(RECORD), lambda store: store.lock().__enter__()])
def test_read_only_folder(tmp_path, monkeypatch, use):
    if os.getuid() == 0:  # nothing is read-only to root: say what a read-only file system says
        real_open = os.open

        def refuse(path, flags, *rest, **named):
            if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
            return real_open(path, flags, *rest, **named)

        monkeypatch.setattr(os, "open", refuse)
    else:
        tmp_path.chmod(0o555)
    with pytest.raises(UserError, match=r"cannot write.*choose a folder that you may"):
        use(ResultsStore(tmp_path))
    assert ResultsStore(tmp_path).records() == []
