"""A real run to report on, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from digits_runs import compare, run_folder

from tta_cattan.bench.run.log import reset_logging
from tta_cattan.cli.main import main


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """The folder of a run of four methods on two corruptions with two seeds."""
    save = tmp_path_factory.mktemp("run")
    settings = {"SEEDS": "0,1", "TEST.EPOCHS": 2, "TEST.BATCH_SIZE": 16}
    assert main(compare(save, "source,norm,tent,cattan", **settings)) == 0
    reset_logging()
    return run_folder(save)


@pytest.fixture(scope="session")
def page(run, tmp_path_factory) -> Path:
    """The page about that run, written by the command."""
    out = tmp_path_factory.mktemp("report")
    assert main(["report", str(run), "--out", str(out)]) == 0
    reset_logging()
    return out / "report.html"
