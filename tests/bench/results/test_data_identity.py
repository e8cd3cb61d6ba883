"""Results belong to the very files that they were computed from, wherever those lie."""

from __future__ import annotations

import os
import shutil
import time

import bad_files
import numpy as np
import pytest
from digits_runs import overrides, read_cells, run_folder

from tta_cattan.bench import Domain
from tta_cattan.bench.data import BENCHMARK_REGISTRY
from tta_cattan.bench.data.datasets import identity_of_rows
from tta_cattan.bench.data.digits import DigitsC
from tta_cattan.bench.protocols.evaluation import Evaluation
from tta_cattan.cli.main import main
from tta_cattan.config import load_cfg
from tta_cattan.util import files
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import identity_of_files


@pytest.fixture
def folder(tmp_path):
    for number in range(40):
        (tmp_path / "data" / f"{number:02}.bin").parent.mkdir(exist_ok=True)
        (tmp_path / "data" / f"{number:02}.bin").write_bytes(bytes([number]) * 100_000)
    return tmp_path / "data"


def identity(folder) -> str:
    return identity_of_files(sorted(folder.iterdir()), folder)


def test_the_same_files_elsewhere_are_the_same(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    assert identity(folder) == identity(tmp_path / "copy") and len(identity(folder)) == 12


@pytest.mark.parametrize("change", ["length", "start", "end", "one byte", "name", "one less", "one more"])
def test_other_files_are_others(folder, change):
    before, file = identity(folder), folder / "02.bin"
    content = bytearray(file.read_bytes())
    if change == "length":
        file.write_bytes(content[:-1])
    elif change == "start":
        file.write_bytes(b"x" + content[1:])
    elif change == "end":
        file.write_bytes(content[:94_000] + b"x" * 6000)
    elif change == "one byte":
        content[50_001] ^= 1
        file.write_bytes(content)
        os.utime(file, ns=(0, 0))
    elif change == "name":
        file.rename(folder / "02.new")
    elif change == "one less":
        (folder / "39.bin").unlink()
    else:
        (folder / "99.bin").write_bytes(b"")
    assert identity(folder) != before


def test_an_unchanged_file_is_read_once_and_a_changed_one_again(folder, monkeypatch):
    monkeypatch.setattr(files, "_SETTLED", -1)
    read = []
    monkeypatch.setattr(files, "sha256_file", lambda path, real=files.sha256_file: read.append(path) or real(path))
    before = identity(folder)
    assert identity(folder) == before and len(read) == 40
    times = (folder / "07.bin").stat()
    (folder / "07.bin").write_bytes(b"y" * 100_000)
    os.utime(folder / "07.bin", ns=(times.st_atime_ns, times.st_mtime_ns))
    time.sleep(0.02)  # a tick of the file system's clock
    assert identity(folder) != before and read[40:] == [folder / "07.bin"], "the same size and time of writing"


def test_every_evaluated_image_of_cifar_c_counts(tmp_path):
    bad_files.cifar_c(tmp_path)
    pairs = ["CORRUPTION.DATASET", "cifar10_c", "DATA_DIR", tmp_path, "CORRUPTION.TYPE", "fog"]
    subject = BENCHMARK_REGISTRY.get("cifar10_c")(load_cfg(None, pairs))
    rows = np.load(tmp_path / "CIFAR-10-C" / "fog.npy", mmap_mode="r+")
    known = {subject.identity(Domain("fog", 5))}
    for image in range(12):
        rows[40000 + image, 31, 31, 2] ^= 1
        known.add(subject.identity(Domain("fog", 5)))
    assert len(known) == 13
    rows[40012] = 1  # beyond the labels: not evaluated
    labels = np.load(tmp_path / "CIFAR-10-C" / "labels.npy")
    assert subject.identity(Domain("fog", 5)) in known
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", labels[::-1])
    assert subject.identity(Domain("fog", 5)) not in known


def test_a_missing_file_is_named(folder):
    with pytest.raises(UserError, match=r"cannot read .*absent"):
        identity_of_files([folder / "absent"], folder)


def test_rows_of_one_severity_do_not_depend_on_the_others(tmp_path):
    rows = np.random.default_rng(0).integers(0, 256, (50, 4, 4, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", rows)
    first, second = (identity_of_rows(tmp_path / "a.npy", slice(start, start + 10)) for start in (0, 10))
    rows[10:20] = 0
    np.save(tmp_path / "a.npy", rows)
    assert identity_of_rows(tmp_path / "a.npy", slice(0, 10)) == first
    assert identity_of_rows(tmp_path / "a.npy", slice(10, 20)) != second
    assert identity_of_rows(tmp_path / "a.npy", slice(0, 10), ["labels"]) != first
    (tmp_path / "a.npy").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"is not an \.npy file"):
        identity_of_rows(tmp_path / "a.npy", slice(0, 10))


@pytest.fixture
def digits_with_files():
    """A plug-in's benchmark whose domains have a file each."""

    @BENCHMARK_REGISTRY.register("digits_with_files")
    class DigitsWithFiles(DigitsC):
        def identity(self, domain):
            from pathlib import Path

            root = Path(self.cfg.DATA_DIR)
            return identity_of_files([root / domain.name], root)

    yield
    del BENCHMARK_REGISTRY._entries["digits_with_files"]


def test_a_changed_file_repeats_the_cells_of_its_domain_alone(tmp_path, digits_with_files):
    for place in ("data", "elsewhere"):
        (tmp_path / place).mkdir()
        for name in ("gaussian_noise", "contrast"):
            (tmp_path / place / name).write_text(name)

    def run(place: str) -> dict:
        keys = {"CORRUPTION.DATASET": "digits_with_files", "DATA_DIR": tmp_path / place, "MODEL.ADAPTATION": "norm"}
        assert main(["--cfg", "cfgs/digits_c/base.yaml", *overrides(tmp_path / "save", **keys)]) == 0
        return read_cells(tmp_path / "save")

    once = run("data")
    assert len(once) == 2 and run("elsewhere") == once, "the same files in another folder"
    (tmp_path / "data" / "contrast").write_text("changed")
    twice = run("data")
    assert [key[1] for key in twice if key not in once] == ["contrast"]
    config = run_folder(tmp_path / "save").glob("config-*.yaml")
    assert {path.stem.split("-")[2] for path in config} == {key[4].split("-")[0] for key in twice}


@pytest.mark.parametrize(("setting", "kept"), [("reset_each_shift", ["gaussian_noise"]), ("continual", [])])
def test_a_file_that_changes_during_a_run(tmp_path, digits_with_files, monkeypatch, capsys, setting, kept):
    """A stream reads its domains as it reaches them: its result would belong to neither the old files nor the new."""
    data = tmp_path / "data"
    for name in ("gaussian_noise", "contrast"):
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_text(name)

    def run(save: str) -> int:
        keys = {"CORRUPTION.DATASET": "digits_with_files", "DATA_DIR": data, "MODEL.ADAPTATION": "norm"}
        online = {"TEST.PROTOCOL": "online", "SETTING": setting}
        return main(["--cfg", "cfgs/digits_c/base.yaml", *overrides(tmp_path / save, **keys, **online)])

    def change_then_add(self, *given) -> None:
        (data / "contrast").write_text("changed")
        add(self, *given)

    add = Evaluation.add
    monkeypatch.setattr(Evaluation, "add", change_then_add)
    assert run("save") == 2
    assert "changed while norm ran on them" in capsys.readouterr().err.splitlines()[-1]
    assert [key[1] for key in read_cells(tmp_path / "save")] == kept
    monkeypatch.undo()
    assert run("save") == run("new") == 0
    assert read_cells(tmp_path / "save") == read_cells(tmp_path / "new")
