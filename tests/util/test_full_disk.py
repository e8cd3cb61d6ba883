"""A disk that takes no more: one line, exit code 2, nothing half written, and the same command goes on later.

The system itself refuses the writes here: files may not grow beyond a limit (EFBIG). A full disk's own error has
another number and takes the same way: ``test_a_full_disk_is_told_by_its_number``.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from digits_runs import overrides
from feature_folders import encoder_weights, manifest
from PIL import Image
from safetensors import SafetensorError

from tta_cattan.alignment import fit_subspace
from tta_cattan.bench.data.features import write_shard
from tta_cattan.bench.results.store import Cell, Record, ResultsStore
from tta_cattan.bench.source import model as training
from tta_cattan.cli.main import main
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import disk_errors, write_text

resource = pytest.importorskip("resource", reason="limits of a process are POSIX's")
ROOT = Path(__file__).parents[2]
CFG = str(ROOT / "cfgs/digits_c/cattan.yaml")
FREE = "free some space and run the same command again"


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond ``size`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


WRITERS = {
    "subspace": lambda p: fit_subspace(torch.randn(200, 64)).save(p / "w.safetensors"),
    "shard": lambda p: write_shard(p, manifest("a", 100, 64), 0, np.zeros((100, 64), np.float32), [0] * 100),
    "predictions": lambda p: ResultsStore(p).append(
        Record(Cell("tent", "fog", 5, 0), "f", {}, {}, {"label": np.zeros(9000, np.int64)})
    ),
    "page": lambda p: write_text(p / "page.html", 5000 * "x"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_leaves_nothing_half_written(tmp_path, name):
    with files_of_at_most(4000), pytest.raises(UserError, match=rf"cannot write '.*': File too large; {FREE}"):
        WRITERS[name](tmp_path)
    assert files_in(tmp_path) == []
    WRITERS[name](tmp_path)
    assert files_in(tmp_path) != []


@pytest.mark.parametrize(
    "fault",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=["python", "quota", "safetensors"],
)
def test_a_full_disk_is_told_by_its_number(fault):
    expected = rf"cannot write 'w': (No space left on device|Disk quota exceeded); {FREE}"
    with pytest.raises(UserError, match=expected), disk_errors("write", "w"):
        raise fault


def test_other_faults_are_not_taken_for_the_disks():
    with pytest.raises(SafetensorError, match="shape"), disk_errors("write", "w"):
        raise SafetensorError("invalid shape")


def corrupted(p: Path) -> list[str]:
    (p / "images" / "class").mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(p / "images" / "class" / "a.png")
    paths = ["--images", str(p / "images"), "--out", str(p / "out")]
    return ["make-corruptions", *paths, "--workers", "1", "--size", "64", "--corruptions", "contrast,fog"]


def corrupted_array(p: Path) -> list[str]:
    (p / "images").mkdir(exist_ok=True)
    np.savez(p / "images" / "x.npz", x=np.zeros((2, 32, 32, 3), np.uint8), y=np.zeros(2, np.int64))
    paths = ["--images", str(p / "images" / "x.npz"), "--out", str(p / "out")]
    return ["make-corruptions", *paths, "--workers", "1", "--corruptions", "contrast", "--severities", "1"]


def fitted(p: Path) -> list[str]:
    return ["fit-source", "--cfg", CFG, "--out", str(p / "out" / "w.safetensors"), *overrides()]


def trained(p: Path) -> list[str]:
    return ["train-source", "--cfg", CFG, *overrides(**{"CKPT_DIR": p / "out"})]


def extracted(p: Path) -> list[str]:
    keys = {"MODEL.ARCH": "timm/resnet10t", "MODEL.CKPT_PATH": encoder_weights("resnet10t")}
    keys |= {"DATA.IMAGE_SIZE": 32, "CORRUPTION.TYPE": "contrast"}
    options = ["--out", str(p / "out"), "--shard-size", "16"]
    return ["extract-features", "--cfg", CFG, *options, *overrides(**keys)]


COMMANDS = {  # with the size that its first large file does not get
    "make-corruptions": (corrupted, 1500),
    "make-corruptions of arrays": (corrupted_array, 4000),
    "fit-source": (fitted, 4000),
    "train-source": (trained, 20_000),
    "train-source at its checkpoint": (trained, 20_000),
    "extract-features": (extracted, 8000),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends_in_one_line_and_goes_on_later(tmp_path, name, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    if name == "extract-features":
        pytest.importorskip("timm")
    make, size = COMMANDS[name]
    arguments = make(tmp_path)
    if name == "train-source at its checkpoint":
        monkeypatch.setattr(training, "_SAVE_EVERY", -1.0)
    if name == "fit-source":
        assert main(["train-source", "--cfg", CFG, *overrides()]) == 0
        capsys.readouterr()
    with files_of_at_most(size):
        code = main(arguments)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(lines) == 1 and "cannot write" in lines[0] and FREE in lines[0], lines
    assert not list(tmp_path.rglob(".*.tmp")), "nothing half written remains"
    assert main(arguments) == 0
