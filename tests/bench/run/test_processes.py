"""Results computed in several processes of one machine: the same figures, and nobody is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from digits_runs import compare, main_in_process, read_cells, start

from tta_cattan.bench.results.store import Cell
from tta_cattan.bench.run import launchers
from tta_cattan.bench.run.plan import Job
from tta_cattan.cli.main import main
from tta_cattan.util import progress

PATIENCE = 300  # seconds until a process is taken to hang: under load a worker starts in a minute


def test_the_figures_are_those_of_one_process_streams_too(tmp_path):
    stream = {"SETTING": "continual", "TEST.PROTOCOL": "online"}
    for name, options in (("one", []), ("two", ["--workers", "1"])):
        assert main(compare(tmp_path / name, "source,cattan", *options, **stream)) == 0
    assert len(one := read_cells(tmp_path / "one")) == 2 and one == read_cells(tmp_path / "two")
    assert not multiprocessing.active_children()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="processes are found by /proc")
def test_a_lost_worker_is_one_line(tmp_path):
    arguments = compare(tmp_path / "save", "tent", "--workers", "1", SEEDS=",".join(map(str, range(200))))
    process = start(main_in_process, arguments, str(tmp_path / "output"))
    deadline = time.monotonic() + 300
    while not list((tmp_path / "save").glob("*/predictions/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = [pid for pid in children_of(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(workers[0], signal.SIGKILL)
    process.join(300)
    assert process.exitcode == 2
    assert "a worker process was lost" in (tmp_path / "output").read_text().splitlines()[-1]


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="processes are found by /proc")
def test_a_worker_ends_with_its_parent(tmp_path):
    arguments = compare(tmp_path / "save", "tent", "--workers", "1", SEEDS=",".join(map(str, range(200))))
    process = start(main_in_process, arguments, str(tmp_path / "output"))
    deadline = time.monotonic() + PATIENCE
    while not list((tmp_path / "save").glob("*/predictions/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    children = children_of(process.pid)
    process.kill()
    process.join()
    assert children
    deadline = time.monotonic() + PATIENCE
    while any(os.path.exists(f"/proc/{pid}") for pid in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]


def test_a_worker_says_where_it_is(monkeypatch):
    def run_cell(job, setting):
        with progress.progress(None, 2, "tent fog5 seed 0") as bar:
            for clock in ("start_t", "last_print_t"):  # as if three seconds had passed
                setattr(bar, clock, getattr(bar, clock) - 3)
            bar.update()
        return launchers.Fault(job.cell, "done")

    monkeypatch.setattr(progress, "_tell", None)
    for name, ours in (("run_cell", run_cell), ("_settings", {}), ("_steps", None)):
        monkeypatch.setattr(launchers, name, ours)
    monkeypatch.setattr(launchers.Home, "enter", lambda _: None)
    monkeypatch.setattr(launchers.signal, "signal", lambda *_: None)
    steps = multiprocessing.SimpleQueue()
    launchers._begin(launchers.pickle.dumps(({"tent": None}, launchers.Home.here())), steps)
    assert launchers._work(SimpleNamespace(cell=SimpleNamespace(label="tent"))).reason == "done"
    assert steps.get() == (os.getpid(), (0.5, "tent fog5 seed 0"))
    assert steps.get() == (os.getpid(), None) and steps.empty()


def test_what_a_worker_raises_is_raised_here(tmp_path, capsys):
    with pytest.raises(KeyError, match="unknown row") as raised:
        list(launchers.ProcessLauncher(1)([Job(None, Cell("unknown row", "fog", 5, 0))], {}))
    assert "_settings[job.cell.label]" in str(raised.value.__cause__), "its traceback"
    assert not multiprocessing.active_children()
    assert main(compare(tmp_path, "cattan", "--workers", "1", **{"CATTAN.D": 5000})) == 2
    assert "CATTAN.D = 5000" in capsys.readouterr().err.splitlines()[-1]
