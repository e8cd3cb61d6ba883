"""A run on a full disk, beside another run, over a damaged line, with a worker that dies: clear, and nothing lost."""

from __future__ import annotations

import errno
import json
import os

import pytest
import torch
from digits_runs import compare, read_cells, run_folder
from torch.utils.data import Dataset

from tta_cattan.bench.data import Stream
from tta_cattan.bench.results import store as store_module
from tta_cattan.bench.results.identity import fingerprint as checksum
from tta_cattan.bench.results.store import ResultsStore
from tta_cattan.cli.main import main
from tta_cattan.methods import Source
from tta_cattan.util.errors import UserError


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The cells of a run that nothing disturbs."""
    save = tmp_path_factory.mktemp("whole")
    assert main(compare(save, "source,tent")) == 0
    return read_cells(save)


def test_a_disk_that_fills_up_in_the_middle_costs_no_finished_cell(tmp_path, monkeypatch, capsys, whole):
    written, write = 0, os.write

    def limited(handle: int, data: bytes) -> int:
        nonlocal written
        written += 1
        if written > 2:
            write(handle, data[:20])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data)

    monkeypatch.setattr(store_module.os, "write", limited)
    assert main(compare(tmp_path, "source,tent")) == 2
    monkeypatch.undo()
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: cannot write") and "free some space and run the same command again" in line
    assert len(ResultsStore(run_folder(tmp_path)).records()) == 2
    assert main(compare(tmp_path, "source,tent")) == 0
    results = run_folder(tmp_path) / "results.jsonl"
    torn = [text for text in results.read_text().splitlines() if not text.endswith("}")]
    assert len(torn) == 1, "what was half written stays, and is skipped"
    results.write_text("".join(f"{text}\n" for text in results.read_text().splitlines() if text not in torn))
    assert read_cells(tmp_path) == whole


def test_a_second_run_in_the_folder_is_refused_and_disturbs_nothing(tmp_path, capsys, whole):
    assert main(compare(tmp_path, "source,tent")) == 0
    folder = run_folder(tmp_path)
    before = (folder / "results.jsonl").read_bytes()
    with ResultsStore(folder).lock():
        assert main(compare(tmp_path, "norm")) == 2
    assert f"another run (process {os.getpid()}" in capsys.readouterr().err
    assert (folder / "results.jsonl").read_bytes() == before and read_cells(tmp_path) == whole


def test_a_damaged_line_is_skipped_and_its_cell_computed_again(tmp_path, capsys, whole):
    assert main(compare(tmp_path, "source,tent")) == 0
    results = run_folder(tmp_path) / "results.jsonl"
    lines = results.read_text().splitlines()
    results.write_text("\n".join([lines[0][:-9], *lines[1:]]) + "\n")
    assert main(compare(tmp_path, "source,tent")) == 0
    assert "line 1 is skipped" in capsys.readouterr().err
    results.write_text("\n".join(results.read_text().splitlines()[1:]) + "\n")
    assert read_cells(tmp_path) == whole


def test_results_that_no_run_wrote_are_not_shown(tmp_path, capsys):
    assert main(compare(tmp_path, "source,tent")) == 0
    results = run_folder(tmp_path) / "results.jsonl"
    one, two, three, *rest = map(json.loads, results.read_text().splitlines())
    for content in (one, two, three):
        del content["check"]
    one["metrics"]["accuracy"] = two["metrics"]["accuracy"] = 5.0
    del three["metrics"]["accuracy"]
    lines = [one, {**two, "check": checksum(two)}, {**three, "check": checksum(three)}, *rest]
    results.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    capsys.readouterr()
    assert main(compare(tmp_path, "source,tent")) == 0
    said = capsys.readouterr()
    assert "line 1 is skipped: it has no checksum" in said.err and "line 2 is skipped: metric 'accuracy'" in said.err
    assert "500" not in said.out and "nan" in said.err
    results.unlink()
    os.mkfifo(results)
    assert main(compare(tmp_path, "source,tent")) == 2
    assert "results.jsonl is a pipe, not a file: move it away" in capsys.readouterr().err.splitlines()[-1]


class Lives(Dataset):
    """A data set that can be read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(2), 0


class Dies(Lives):
    """A data set whose worker is killed at its fifth sample, as by a system that is out of memory."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 5:
            os._exit(137)
        return super().__getitem__(index)


def test_a_worker_that_dies_is_one_line():
    stream = Stream(Dies(), 2, None, torch.device("cpu"), workers=1)
    with pytest.raises(UserError, match=r"a worker process of the data loader has died.*TEST.NUM_WORKERS"):
        list(stream)


class Raises(Dataset):
    """A data set with a sample that cannot be read."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("bad"), FileNotFoundError("gone"), EOFError("cut")], ids=repr)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_sample_raises_is_not_taken_for_a_death(error, workers):
    stream = Stream(Raises(error), 2, None, torch.device("cpu"), workers=workers)
    with pytest.raises(type(error), match=str(error)):
        list(stream)


@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset"), ConnectionRefusedError(), EOFError()], ids=repr)
def test_a_worker_that_dies_while_it_hands_over_a_batch_is_one_line(error, monkeypatch):
    def breaks(*_: object) -> None:
        raise error

    monkeypatch.setattr("multiprocessing.resource_sharer._resource_sharer.get_connection", breaks)
    stream = Stream(Lives(), 2, None, torch.device("cpu"), workers=1)
    with pytest.raises(UserError, match=r"a worker process of the data loader has died.*TEST.NUM_WORKERS"):
        list(stream)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried ...\nmore")])
def test_too_little_memory_is_one_line(error, monkeypatch, capsys, tmp_path):
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("tta_cattan.bench.run.runner.run", fails)
    assert main(compare(tmp_path)) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("lower TEST.BATCH_SIZE; what is finished is kept")


@pytest.mark.parametrize("changes", [{}, {"SETTING": "continual"}], ids=["domains", "stream"])
def test_outputs_that_are_not_finite_are_named(tmp_path, monkeypatch, capsys, changes):
    def spoilt(self, x, indices=None):
        return self.infer(x, adapting=False).masked_fill(torch.arange(len(x))[:, None] == 0, float("nan"))

    monkeypatch.setattr(Source, "forward", spoilt)
    assert main(compare(tmp_path, "source", **{"TEST.PROTOCOL": "online", "TEST.BATCH_SIZE": 32, **changes})) == 0
    said = capsys.readouterr().err
    expected = "4 of 128" if changes else "2 of 64"
    assert f"{expected} outputs are not finite and count as wrong" in said
