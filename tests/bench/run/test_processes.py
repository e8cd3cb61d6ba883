"""Results computed in several processes of one machine: the same figures, and nobody is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from digits_runs import compare, main_in_process, read_cells, start

from tta_cattan.bench.run import launchers
from tta_cattan.cli.main import main
from tta_cattan.util import progress


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
    arguments = compare(tmp_path / "save", "tent", "--workers", "1", SEEDS=",".join(map(str, range(500))))
    process = start(main_in_process, arguments, str(tmp_path / "output"))
    deadline = time.monotonic() + 120
    while not list((tmp_path / "save").glob("*/predictions/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = [pid for pid in children_of(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(workers[0], signal.SIGKILL)
    process.join(60)
    assert process.exitcode == 2
    assert "a worker process was lost (exit code -9)" in (tmp_path / "output").read_text().splitlines()[-1]


def test_a_worker_ends_with_its_parent(monkeypatch):
    for name in ("launchers.signal.signal", "launchers.relay_progress", "cell.torch.set_num_threads"):  # ours stay
        monkeypatch.setattr(f"tta_cattan.bench.run.{name}", lambda *_: None)
    ours, theirs = multiprocessing.Pipe()
    ours.send_bytes(launchers.pickle.dumps(({}, [], {})))
    ours.close()
    launchers._work(theirs)


def test_a_worker_says_where_it_is(monkeypatch):
    def run_cell(job, setting):
        with progress.progress(None, 2, "tent fog5 seed 0") as bar:
            for clock in ("start_t", "last_print_t"):  # as if three seconds had passed
                setattr(bar, clock, getattr(bar, clock) - 3)
            bar.update()
        return launchers.Fault(job.cell, "done")

    monkeypatch.setattr(progress, "_tell", None)
    monkeypatch.setattr(launchers, "run_cell", run_cell)
    for name in ("launchers.signal.signal", "launchers.begin_worker"):
        monkeypatch.setattr(f"tta_cattan.bench.run.{name}", lambda *_: None)
    ours, theirs = multiprocessing.Pipe()
    worker = threading.Thread(target=launchers._work, args=(theirs,))
    worker.start()
    for message in (({"tent": None}, [], {}), SimpleNamespace(cell=SimpleNamespace(label="tent"))):
        launchers._tell(ours, message)
    assert launchers._received(ours, None) == launchers.Step(0.5, "tent fog5 seed 0")
    assert launchers._received(ours, None).reason == "done"
    ours.close()
    worker.join()


def test_what_a_worker_raises_is_raised_here(tmp_path, capsys):
    class Connection:
        def recv_bytes(self):
            return launchers.pickle.dumps((KeyError("inside"), "its traceback"))

    with pytest.raises(KeyError, match="inside") as raised:
        launchers._received(Connection(), None)
    assert "its traceback" in str(raised.value.__cause__)
    assert main(compare(tmp_path, "cattan", "--workers", "1", **{"CATTAN.D": 5000})) == 2
    assert "CATTAN.D = 5000" in capsys.readouterr().err.splitlines()[-1]
