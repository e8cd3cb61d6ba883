"""Cells on Ray: the same figures as one after the other, whoever is killed on the way."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pytest
from digits_runs import compare, main_in_process, read_cells, start

from tta_cattan.bench.results.identity import versions
from tta_cattan.bench.results.store import Cell
from tta_cattan.bench.run import launchers
from tta_cattan.cli.main import main
from tta_cattan.util.errors import UserError

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray, an extra, is not installed")
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found by /proc")
LONG = {"TEST.EPOCHS": 10, "TEST.BATCH_SIZE": 16}  # cells long enough to be killed in their middle
PATIENCE = 900  # seconds until a run is taken to hang: under load Ray alone needs a minute


def descendants(root: int) -> set[int]:
    """Return the ids of the processes that ``root`` started, and that those started."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, fresh = set(), {root}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh}
        found |= fresh
    return found


def cells_at_work(root: int) -> dict[int, tuple[str, str, int]]:
    """Return the cell that each Ray worker below ``root`` computes now: (method, label of the domain, seed)."""
    found = {}
    for pid in descendants(root):
        try:
            title = (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
        if match := re.fullmatch(r"ray::cell (\S+) (\S+) (\d+)", title):
            found[pid] = (match[1], match[2], int(match[3]))
    return found


def until(condition, what: str):
    """Return the first true value of ``condition``."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)
    return value


def finished(save: Path) -> set[tuple[str, str, int]]:
    """Return the cells in the results file of a run that may not have begun."""
    found = set()
    for path in save.glob("*/results.jsonl"):
        for line in path.read_text().splitlines():
            fields = {name: re.search(rf'"{name}":"?(\w+)', line) for name in ("method", "domain", "severity", "seed")}
            if all(fields.values()):
                name = fields["domain"][1] + fields["severity"][1]
                found.add((fields["method"][1], name, int(fields["seed"][1])))
    return found


@pytest.fixture
def begin():
    """Return ``start``, whose processes do not outlive the test."""
    processes = []

    def remembered(*args: object):
        processes.append(start(*args))
        return processes[-1]

    yield remembered
    for process in processes:
        process.kill()


@needs_ray
@needs_proc
def test_with_a_worker_and_the_driver_killed_the_figures_are_those_of_one_process(tmp_path, begin):
    alone, spread = (compare(tmp_path / name, "tent,cattan", **LONG) for name in ("alone", "spread"))
    output = tmp_path / "output"
    driver = begin(main_in_process, [*spread, "--launcher", "ray", "--workers", "1"], str(output))
    worker, cell = until(lambda: next(iter(cells_at_work(driver.pid).items()), None), "no worker began a cell")
    os.kill(worker, signal.SIGKILL)
    assert cell not in finished(tmp_path / "spread"), "it must have been killed before it was done"
    # Ray may begin it again before or after the others.
    until(lambda: cell in (cells_at_work(driver.pid) | {worker: None}).values(), "the cell was not begun again")
    until(lambda: finished(tmp_path / "spread"), "no cell was finished")
    below = descendants(driver.pid)
    assert driver.is_alive() and below, output.read_text()
    driver.kill()
    driver.join()
    for pid in below:  # Ray takes a minute to see that its driver is gone
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    half = read_cells(tmp_path / "spread")
    assert 1 <= len(half) < 4

    assert main(alone) == main(spread) == 0, "without Ray: what it has finished is used"
    together, separate = read_cells(tmp_path / "spread"), read_cells(tmp_path / "alone")
    assert together == separate and len(separate) == 4
    assert half.items() <= together.items()


@needs_ray
def test_what_ended_a_task_is_one_line(monkeypatch):
    """Ray's own exceptions; starting Ray for each would take a minute."""
    import ray

    cell = Cell("cattan", "fog", 5, 0)
    ended = {
        ray.exceptions.RayTaskError("_compute", "its traceback", UserError("CATTAN.D = 5000")): "CATTAN.D = 5000",
        ray.exceptions.WorkerCrashedError(): "its worker was lost 4 times",
    }
    for error, words in ended.items():
        monkeypatch.setattr(ray, "get", Mock(side_effect=error))
        with pytest.raises(UserError, match=words):
            launchers._result(ray, None, cell)
    monkeypatch.setattr(ray, "get", Mock(side_effect=ray.exceptions.RayTaskError("_compute", "", KeyError("ours"))))
    with pytest.raises(ray.exceptions.RayTaskError):
        launchers._result(ray, None, cell)


def test_a_worker_of_other_versions_refuses():
    expected = {**versions(), "torch": "0.1"}
    with pytest.raises(UserError, match=r"has torch .* and the driver 0\.1: install the same"):
        launchers.Home(".", expected, [], {}).enter()


@needs_ray
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--address", "auto"], "--address auto: this is an option of --launcher ray"),
        (["--workers", "0"], "--workers 0: at least 1"),
        (["--launcher", "ray", "--workers", "0"], "--workers 0: at least 1"),
        (["--launcher", "ray", "--address", "127.0.0.1:1"], "nobody answers at '127.0.0.1:1'"),
        (["--launcher", "ray", "--address", "here"], "--address 'here': give HOST:PORT"),
        (["--launcher", "ray", "--workers", "2", "--address", "auto"], "the cluster at auto decides"),
    ],
)
def test_options_that_cannot_be_followed_are_refused(tmp_path, capsys, options, words):
    assert main(compare(tmp_path, "source", *options)) == 2
    assert words in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_without_ray_one_line_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(compare(tmp_path, "source", "--launcher", "ray")) == 2
    assert "pip install 'tta-cattan[ray]'" in capsys.readouterr().err and list(tmp_path.iterdir()) == []
