"""A stream is one cell: planned, computed, killed and resumed like any other."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from digits_runs import compare, main_in_process, overrides, read_cells, run_folder, start

from tta_cattan.bench import Domain
from tta_cattan.bench.data import benchmark_of
from tta_cattan.bench.protocols import stream as stream_module
from tta_cattan.bench.results.store import ResultsStore, predictions_path, read_predictions
from tta_cattan.bench.results.summary import summarise
from tta_cattan.bench.run import runner
from tta_cattan.bench.run.plan import Row, Sweep, cell_fingerprint, plan_cells
from tta_cattan.cli import compare as compare_command
from tta_cattan.cli.main import main
from tta_cattan.config import get_defaults, load_cfg
from tta_cattan.util.errors import UserError

ONLINE = {"TEST.PROTOCOL": "online", "TEST.BATCH_SIZE": 8}


def streamed(save, setting, methods="source,tent", *options, **changes):
    return compare(save, methods, *options, SETTING=setting, **{**ONLINE, **changes})


def records(save):
    return {record.cell.label: record for record in ResultsStore(run_folder(save)).records()}


def predictions(save):
    folder = run_folder(save)
    return {
        label: read_predictions(predictions_path(folder, record.cell, record.fingerprint))
        for label, record in records(save).items()
    }


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[m][c], other[m][c]) for m in one for c in one[m])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A stream that nothing disturbs."""
    save = tmp_path_factory.mktemp("whole")
    assert main(streamed(save, "recurring", "tent,cattan_plus", **{"STREAM.ROUNDS": 3})) == 0
    return save


@pytest.mark.parametrize("setting", ["continual", "gradual", "mixed_domains_correlated", "smooth"])
def test_a_stream_is_one_cell_named_after_its_setting(tmp_path, setting, capsys):
    assert main(streamed(tmp_path, setting, **{"CORRUPTION.NUM_EX": 32})) == 0
    found = records(tmp_path)
    assert [record.cell.target for record in found.values()] == [Domain(setting)] * 2
    assert run_folder(tmp_path).name.endswith(setting) and setting in capsys.readouterr().out
    for record in found.values():
        visits = record.info["visits"]
        assert len(visits) == (18 if setting == "gradual" else 2)
        assert sum(v["n"] for v in visits) == record.metrics["n"] == 32 * len(visits)
        right = sum(v["correct"] for v in visits)
        assert (
            right == sum(record.info["windows"]["correct"]) == round(record.metrics["accuracy"] * record.metrics["n"])
        )
        assert {"worst_window", "clean_accuracy", "seconds", "extra_bytes"} <= record.metrics.keys()
    assert len(predictions(tmp_path)["tent"]["label"]) == found["tent"].metrics["n"]
    summary = (run_folder(tmp_path) / "summary.md").read_text()
    assert "samples per stream" in summary and "Accuracy on clean data after the stream" in summary
    before = read_cells(tmp_path)
    assert main(streamed(tmp_path, setting, **{"CORRUPTION.NUM_EX": 32})) == 0
    assert read_cells(tmp_path) == before, "nothing is computed twice"


def test_a_stream_that_does_not_wait(tmp_path):
    """Source and Norm cost one prediction a batch; TENT's update two or three, so it skips batches."""
    assert main(streamed(tmp_path, "continual", "source,norm,tent", **{"STREAM.WAITS": False})) == 0
    every = {name: record.info["adapted_every"] for name, record in records(tmp_path).items()}
    assert every["source"] == every["norm"] == 1 < every["tent"] <= 3
    assert main(streamed(tmp_path / "waiting", "continual", "source,tent")) == 0
    waiting = records(tmp_path / "waiting")
    assert waiting["tent"].info["adapted_every"] == 1


def test_batch_size_1(tmp_path):
    assert main(streamed(tmp_path, "continual", "tent", **{"TEST.BATCH_SIZE": 1, "CORRUPTION.NUM_EX": 20})) == 0
    assert records(tmp_path)["tent"].metrics["n"] == 40


def test_a_monitor_looks_on(tmp_path):
    assert main(streamed(tmp_path, "continual", "tent", **{"CORRUPTION.NUM_EX": 128, "STREAM.MONITOR": True})) == 0
    watched = records(tmp_path)["tent"].info["monitor"]
    ((seen, *estimate, drift),) = watched["readings"]
    assert seen == 256 and 0 <= estimate[1] <= estimate[0] <= estimate[2] <= 1 and drift >= 0


def test_a_stream_depends_on_its_domains_and_its_own_keys():
    def stamp(**changes):
        cfg = get_defaults("tent")
        cfg.SETTING = changes.pop("SETTING", "continual")
        for key, value in changes.items():
            node, name = key.split("_", 1)
            cfg[node][name] = value
        return cell_fingerprint(cfg, "m", None, {})

    streams = [
        stamp(), stamp(CORRUPTION_TYPE=["fog"]), stamp(CORRUPTION_SEVERITY=[1]), stamp(STREAM_ROUNDS=3),
        stamp(STREAM_IMBALANCE=3.0), stamp(STREAM_WAITS=False), stamp(TEST_DELTA_DIRICHLET=0.5),
        stamp(SETTING="smooth"), stamp(STREAM_MONITOR=True),
    ]  # fmt: skip
    plain = [stamp(SETTING="reset_each_shift", **c) for c in ({}, {"STREAM_ROUNDS": 3}, {"CORRUPTION_TYPE": ["fog"]})]
    assert len(set(streams + plain)) == len(streams) + 1


def test_the_default_has_the_cells_it_had():
    cfg = load_cfg(None, [])
    domains = [Domain("fog", 5), Domain("snow", 5)]
    assert [cell.target for cell in plan_cells(Row(cfg), domains)] == domains
    with pytest.raises(UserError, match="SETTING cannot be swept"):
        Sweep.parse("SETTING=continual,smooth")


def test_clean_data(tmp_path):
    cfg = load_cfg("cfgs/digits_c/base.yaml", overrides())
    clean, severity_0 = benchmark_of(cfg).clean(), benchmark_of(cfg).target(Domain("fog", 0))
    assert all(map(np.array_equal, clean.tensors, severity_0.tensors))
    for dataset in ("cifar10_c", "imagenet_c", "features"):
        assert benchmark_of(load_cfg(None, ["CORRUPTION.DATASET", dataset, "DATA_DIR", tmp_path])).clean() is None


def test_a_dry_run_checks_and_writes_nothing(tmp_path, capsys, whole):
    assert main(streamed(tmp_path, "gradual", "tent", "--dry-run")) == 0
    assert "protocol   gradual, " in capsys.readouterr().out and not list(tmp_path.iterdir())
    arguments = streamed(tmp_path, "gradual", "tent", "--dry-run", **{"CORRUPTION.SEVERITY": 0})
    assert main(arguments) == 2 and "severities 1 to 5" in capsys.readouterr().err


def test_the_checkpoint_is_there_while_it_is_needed(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(stream_module, "_SAVE_EVERY", 40)
    ticks = 0

    def stop(*args):
        nonlocal ticks
        ticks += 1
        if ticks > 4:
            raise KeyboardInterrupt
        save(*args)

    save = stream_module._save
    monkeypatch.setattr(stream_module, "_save", stop)
    arguments = streamed(tmp_path, "recurring", "tent,cattan_plus", **{"STREAM.ROUNDS": 3})
    assert main(arguments) != 0
    (checkpoint,) = (run_folder(tmp_path) / "unfinished").iterdir()
    assert checkpoint.name.startswith("tent-recurring-0-")
    monkeypatch.setattr(stream_module, "_save", save)
    assert main(arguments) == 0
    assert not list((run_folder(tmp_path) / "unfinished").iterdir())
    assert read_cells(tmp_path) == read_cells(whole) and same(predictions(tmp_path), predictions(whole))


def save_often(arguments, output):
    """Run the command line with a checkpoint every 16 samples, and slowly enough to be killed in between."""
    stream_module._SAVE_EVERY, save = 16, stream_module._save

    def save_and_wait(*args):
        save(*args)
        time.sleep(0.02)

    stream_module._save = save_and_wait
    main_in_process(arguments, output)


def written(folder):
    """Return the checkpoints and when they were written."""
    found = {}
    for path in folder.glob("save/*/unfinished/*.pt"):
        with suppress(FileNotFoundError):
            found[path] = path.stat().st_mtime_ns
    return found


def test_a_killed_stream_is_the_undisturbed_one(tmp_path, whole):
    arguments = streamed(tmp_path / "save", "recurring", "tent,cattan_plus", **{"STREAM.ROUNDS": 3})
    output, rng = tmp_path / "output.txt", random.Random(0)
    for _ in range(2):
        before = written(tmp_path)
        process = start(save_often, arguments, str(output))
        deadline = time.monotonic() + 300
        while written(tmp_path) == before and process.is_alive():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.3 * rng.random())
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert main(arguments) == 0
    assert "resuming the stream after" in output.read_text()
    assert read_cells(tmp_path / "save") == read_cells(whole)
    assert same(predictions(tmp_path / "save"), predictions(whole))


def test_two_processes_on_one_stream(tmp_path, whole, capsys):
    arguments = streamed(tmp_path / "save", "recurring", "tent,cattan_plus", **{"STREAM.ROUNDS": 3})
    process = start(save_often, arguments, str(tmp_path / "output.txt"))
    deadline = time.monotonic() + 300
    while not written(tmp_path):
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGSTOP)
    assert main(arguments) == 2
    assert f"another run (process {process.pid}" in capsys.readouterr().err
    os.kill(process.pid, signal.SIGCONT)
    process.join()
    assert process.exitcode == 0 and read_cells(tmp_path / "save") == read_cells(whole)
    assert same(predictions(tmp_path / "save"), predictions(whole))


@pytest.mark.parametrize(
    ("arguments", "tables"),
    [
        ([], 2), (["CKPT_DIR", "elsewhere", "DEVICE", "cpu"], 2),
        (["SEEDS", "3"], 1), (["--methods", "tent"], 1), (["SETTING", "smooth", "TEST.PROTOCOL", "online"], 1),
    ],
)  # fmt: skip
def test_the_first_command_has_a_stream_as_its_second_table(arguments, tables, monkeypatch, capsys):
    asked = []

    def run(rows, launcher):
        asked.append(rows)
        return runner.Outcome([], summarise([]), [], [Path("there")])

    reported = []
    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(compare_command, "_report", lambda folders, out: reported.append((len(folders), str(out))))
    assert main(["compare", *arguments]) == 0
    assert len(asked) == tables and capsys.readouterr().out.count("results: there") == tables
    assert reported == ([(2, "output/report")] if tables == 2 else [])
    if tables == 2:
        cfg = asked[1][0].cfg
        assert (cfg.SETTING, cfg.TEST.PROTOCOL, cfg.SEEDS) == ("continual", "online", [0])
        assert [row.method for row in asked[0]] == [row.method for row in asked[1]]


def test_pairs_are_no_streams(capsys):
    arguments = ["pairs", "--cfg", "cfgs/mnist_usps/cattan.yaml", "SETTING", "continual", "TEST.PROTOCOL", "online"]
    assert main(arguments) == 2 and "a stream has no source>target pairs" in capsys.readouterr().err
