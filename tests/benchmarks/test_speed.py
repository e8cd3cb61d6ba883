"""Every benchmark runs at a tiny size; nothing is timed here."""

from __future__ import annotations

import importlib
import math
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks.speed import timing
from benchmarks.speed.__main__ import NAMES, main
from benchmarks.speed.growth import exponent
from benchmarks.speed.timing import Line, Rounds

FOLDER = Path(__file__).parents[2] / "benchmarks" / "speed"
HELPERS = {"__init__", "__main__", "results", "subjects", "table", "timing"}
EXTRAS = {"evaluation": "robustbench"}


@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name, monkeypatch):
    if name in EXTRAS and find_spec(EXTRAS[name]) is None:
        pytest.skip(f"{EXTRAS[name]}, an extra, is not installed")
    monkeypatch.setattr(timing, "gc", Mock())  # before each timing, a third of a second of its own
    lines = importlib.import_module(f"benchmarks.speed.{name}").measure(tiny=True)
    assert lines and all(math.isfinite(line.ratio) and line.row().count(" | ") == 6 for line in lines)


def test_what_is_finished_is_kept_and_not_run_again(tmp_path, capfd):
    path = tmp_path / "new" / "kept.jsonl"
    assert main(["likelihood_ratio", "--tiny", "--keep", str(path)]) == 0
    first = capfd.readouterr()
    assert "likelihood_ratio: runs" in first.err and first.out.count("likelihood ratio and gradient") == 3
    with path.open("a") as file:
        file.write('{"name": "growth", "ro')  # killed while it wrote
    assert main(["likelihood_ratio", "--tiny", "--keep", str(path)]) == 0
    again = capfd.readouterr()
    assert "runs" not in again.err and again.out == first.out
    with pytest.raises(SystemExit):
        main(["speed", "--keep", str(path)])
    assert "no benchmark is called speed" in capfd.readouterr().err


def test_all_are_listed():
    assert {path.stem for path in FOLDER.glob("*.py")} - HELPERS == set(NAMES)


def test_ratios_are_taken_round_by_round():
    rounds = Rounds({"ours": [1.0, 30.0, 3.0], "theirs": [2.0, 60.0, 2.0]})
    assert rounds.ratio("ours", "theirs") == 0.5
    slower = rounds.line("x", "ours", "theirs", ">= 1.5")
    assert slower.ratio == 2.0 and slower.met is True
    assert rounds.line("x", "ours", "theirs", "<= 0.4").met is False
    assert Line("x", "y", "1", "2", 0.5).met is None


def test_the_exponent_of_a_power_is_the_power():
    assert exponent([1, 2, 4, 8], [3.0, 12.0, 48.0, 192.0]) == pytest.approx(2)
