"""Runs of the harness on the embedded digits, small enough for tests, and processes that can be killed."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tta_cattan.bench.results.store import Record
from tta_cattan.bench.run.cell import COST_METRICS

TINY = {
    "CORRUPTION.NUM_EX": "64",
    "CORRUPTION.TYPE": "gaussian_noise,contrast",
    "SOURCE.EPOCHS": "1",
    "TEST.EPOCHS": "1",
    "SEEDS": "0",
    "DEVICE": "cpu",
}


@cache
def ckpt_dir() -> str:
    """Return a folder in which the source model of all small runs is trained once."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return folder.name


def overrides(save: Path | None = None, **changes: object) -> list[str]:
    """Return the KEY VALUE pairs of a small run; ``SEEDS="0,1"`` or ``**{"OPTIM.LR": 1}`` change it."""
    values = {**TINY, "CKPT_DIR": ckpt_dir(), **({} if save is None else {"SAVE_DIR": save}), **changes}
    if values.get("TEST.PROTOCOL") == "online" and "TEST.EPOCHS" not in changes:
        del values["TEST.EPOCHS"]  # a key without effect is refused
    return [str(part) for pair in values.items() for part in pair]


def compare(save: Path, methods: str = "source,tent", *options: str, **changes: object) -> list[str]:
    """Return the arguments of a small comparison."""
    return ["--methods", methods, *options, *overrides(save, **changes)]


def run_folder(save: Path) -> Path:
    """Return the one folder that a run made in ``save``."""
    (folder,) = save.iterdir()
    return folder


def read_cells(save: Path) -> dict[tuple[str, str, int, int, str], dict[str, float]]:
    """Return the metrics of each cell and fingerprint but for the cost, which differs; a cell twice is an error."""
    cells = {}
    for line in (run_folder(save) / "results.jsonl").read_text().splitlines():
        record = Record.from_line(line)
        cell = record.cell
        key = (cell.label, cell.domain, cell.severity, cell.seed, record.fingerprint)
        assert key not in cells, f"{key} was computed twice"
        cells[key] = {name: value for name, value in record.metrics.items() if name not in COST_METRICS}
    return cells


def need_robustbench() -> None:
    """Skip where RobustBench, an extra, is not installed; importing it is not tried, because it fails as released."""
    if find_spec("robustbench") is None:
        pytest.skip("RobustBench is not installed", allow_module_level=True)


def start(target, *args: object) -> multiprocessing.process.BaseProcess:
    """Start a real process that can be killed; the imports are paid for once, in a server that forks it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "scipy.ndimage", "tqdm", "tta_cattan.bench.run.runner"])
    process = context.Process(target=target, args=args)
    process.start()
    return process


def main_in_process(arguments: list[str], output: str) -> None:
    """Run the command line in this process, with both outputs in a file."""
    _redirect(output)
    import torch

    from tta_cattan.cli.main import main

    torch.set_num_threads(1)
    sys.exit(main(arguments))


def fit_slowly(arguments: list[str], output: str) -> None:
    """Run ``fit-source`` with a checkpoint after every batch, and slowly enough to be killed in between."""
    from tta_cattan.bench.source import subspace

    subspace._SAVE_EVERY, subspace.save_state = -1.0, _and_wait(subspace.save_state)
    main_in_process(arguments, output)


def train_slowly(arguments: list[str], output: str) -> None:
    """Run a command that trains, with a checkpoint after every update, and slowly enough to be killed in between."""
    from tta_cattan.bench.source import model as training

    training._SAVE_EVERY, training._Training.save = -1.0, _and_wait(training._Training.save)
    main_in_process(arguments, output)


def _and_wait(save: Callable[..., None]) -> Callable[..., None]:
    def save_and_wait(*args: object) -> None:
        save(*args)
        time.sleep(0.3)

    return save_and_wait


def _redirect(output: str) -> None:
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
