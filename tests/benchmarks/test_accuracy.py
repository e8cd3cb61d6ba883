"""The study's grid is well formed, chooses the best rate elsewhere, and is used again; streams that are left on."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from digits_runs import overrides
from PIL import Image

from benchmarks.accuracy import shifts
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.figure import draw
from benchmarks.accuracy.grid import COLUMNS, Entry, Grid, best_settings, grids, paired, run_grid, to_markdown
from benchmarks.accuracy.left_on import PHASES, RUBBISH, RUBBISH_BATCHES, Stream, batches, load_phase, order, rubbish
from benchmarks.accuracy.shifts import ChoosingDigits, make_all, make_cifar, make_digits, make_imagenet
from benchmarks.accuracy.streams import FIXED, OURS, Streams, streams
from tta_cattan.bench import Domain
from tta_cattan.bench.results.store import Cell, Record
from tta_cattan.bench.run.plan import plan_rows
from tta_cattan.config import find_config, load_cfg
from tta_cattan.util.errors import UserError

TINY = Grid(
    "tiny", "Tiny", "cfgs/digits_c/cattan.yaml", [*overrides(), "CORRUPTION.TYPE", ["contrast"]], overrides(),
    (1e-4, 0.5), ("nothing", "both"), ("source", "norm", "tent", "cattan_forward"),
    readings=("CATTAN.CLASS_BALANCE=sum,running",),  # none of TENT's
)  # fmt: skip


def test_every_grid_loads_and_chooses_on_what_it_does_not_report():
    for grid in grids(Path("data"), Path("out")):
        for cfg, changes in ((grid.choosing_cfg or grid.cfg, grid.choosing), (grid.cfg, grid.reported)):
            for column in grid.columns:
                values = [str(v) if isinstance(v, Path) else v for v in (*changes, *COLUMNS[column])]
                rows = plan_rows(find_config(cfg), values, grid.methods)
                assert [row.method for row in rows] == list(grid.methods)
        data = [
            tuple(str(v) for k, v in zip(c[::2], c[1::2], strict=True) if k.startswith(("DATA", "CORRUPTION")))
            for c in (grid.choosing, grid.reported)
        ]
        assert data[0] != data[1]


def test_every_stream_loads_and_chooses_on_what_it_does_not_report():
    run = Streams(Path("data"), Path("out"))
    for stream in streams().values():
        choosing = run.overrides("choosing", "cifar_resnet20", ("SETTING", "continual", *stream.choosing))
        rows = [
            plan_rows(run.cfg, changes, [*FIXED, *OURS])[0].cfg
            for changes in (choosing, run.overrides("reported", stream.network, stream.changes))
        ]
        assert rows[0].TEST.BATCH_SIZE == rows[1].TEST.BATCH_SIZE and len(stream.rates) > 2
        assert rows[0].DATA_DIR != rows[1].DATA_DIR
        assert not set(rows[0].CORRUPTION.TYPE) & set(rows[1].CORRUPTION.TYPE)


def test_the_best_rate_of_a_stream_is_that_of_the_choosing_one(monkeypatch):
    accuracy = {"choosing": {3e-4: 0.5, 1e-3: 0.7, 3e-3: 0.6, 1e-2: 0.1}, "reported": dict.fromkeys((1e-3,), 0.4)}

    def records(self, method, part, network, rate, changes):
        found = {"accuracy": accuracy[part][rate], "worst_window": 0.2, "clean_accuracy": 0.9, "seconds": 3.2}
        return [Record(Cell(method, "continual", 0, 0), "", found, {})]

    monkeypatch.setattr(Streams, "records", records)
    line = Streams(Path("data"), Path("out")).row("tent", "continual", streams()["continual"])
    chosen = "0.0003: 50.0, 0.001: 70.0, 0.003: 60.0, 0.01: 10.0"
    assert line == f"| continual | TENT | 0.001 | 40.0 / 20.0 / 90.0 | 3 | {chosen} |"


def test_a_grid_runs_and_its_cells_are_used_again(tmp_path):
    found = run_grid(TINY, tmp_path)
    assert set(found) == {("source", "nothing"), *((m, c) for m in TINY.methods[1:] for c in TINY.columns)}
    assert found["tent", "nothing"].chosen["OPTIM.LR"] in TINY.rates and not found["norm", "both"].chosen
    text = to_markdown(found, TINY.columns)
    assert "| CATTAn-F |" in text and "CATTAn-F minus the best other" in text
    draw(found, tmp_path, "tiny")
    assert {"nothing", "both", "TENT"} <= set(re.findall(r">([^<]+)</text>", (tmp_path / "tiny.svg").read_text()))
    written = sorted(tmp_path.rglob("results.jsonl"))
    before = [path.read_bytes() for path in written]
    assert to_markdown(run_grid(TINY, tmp_path), TINY.columns) == text
    assert [path.read_bytes() for path in written] == before, "nothing was computed again"


def test_a_paired_interval_counts_domains_and_not_seeds():
    def entry(*values: float) -> Entry:
        return Entry(
            {},
            {(name, s): v + shift for name, v in zip("abc", values, strict=True) for s, shift in ((0, -1), (1, 1))},
            1.0,
        )

    difference, half = paired(entry(3, 5, 7), entry(2, 3, 4))
    assert difference == pytest.approx(2) and half == pytest.approx(4.302653 / 3**0.5)  # t at 2 degrees of freedom


def test_the_best_settings_are_of_the_mean_over_domains():
    def record(rate: float, balance: str, domain: str, accuracy: float) -> Record:
        settings = (("OPTIM.LR", rate), ("CATTAN.CLASS_BALANCE", balance))
        return Record(Cell("cattan", domain, 0, 0, settings), "", {"accuracy": accuracy}, {})

    records = [record(1e-3, "sum", "a", 0.9), record(1e-3, "sum", "b", 0.1), record(1e-2, "running", "a", 0.6)]
    assert best_settings([*records, record(1e-2, "running", "b", 0.6)]) == {
        "OPTIM.LR": 1e-2,
        "CATTAN.CLASS_BALANCE": "running",
    }


def test_an_unknown_table_is_told(capsys):
    with pytest.raises(SystemExit):
        main(["--data", "data", "cifar100"])
    assert "no table is called cifar100; there are cifar-online" in capsys.readouterr().err


def test_missing_features_are_told(tmp_path):
    with pytest.raises(UserError, match=r"extract-features --cfg cfgs/office31_features/extract.yaml"):
        make_all(tmp_path, tmp_path, ["office31"])


def test_digits_that_choose_stand_beside_the_others(tmp_path):
    data = tmp_path / "data" / "digits"
    data.mkdir(parents=True)
    x, y = np.full((3000, 16, 16), 9, np.uint8), np.arange(3000) % 10
    np.savez(data / "usps.npz", x_train=x[:5], y_train=y[:5], x_test=x, y_test=y)
    np.savez(data / "mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    make_digits(tmp_path / "data", tmp_path / "digits")
    cfg = load_cfg(None, ["DATA_DIR", str(tmp_path / "digits"), "DATA.SOURCE", "mnist", "CORRUPTION.NUM_EX", -1])
    images, labels = ChoosingDigits(cfg).target(Domain("uci")).tensors
    assert images.shape == (1797, 1, 28, 28) and 0.9 < images.max() <= 1 and labels.bincount().min() > 150


def test_orders_of_classes():
    labels, rng = np.arange(1000) % 10, np.random.default_rng(0)
    assert (np.diff(labels[order(labels, "sorted", 200, rng)]) >= 0).all()
    assert set(labels[order(labels, "two", 200, rng)]) == {0, 1}
    tail = np.bincount(labels[order(labels, "tail", 1000, rng)], minlength=10)
    assert (np.abs(tail - 100 * 0.6 ** np.arange(10)) <= 5 * np.sqrt(100 * 0.6 ** np.arange(10))).all()
    runs = labels[order(labels, "dirichlet", 400, rng)]
    plain = labels[order(labels, "balanced", 400, rng)]
    assert (np.diff(runs) == 0).sum() > 2 * (np.diff(plain) == 0).sum()
    assert len(set(order(labels, "dirichlet", 400, rng))) == 400


def test_rubbish_comes_between_phases(tmp_path):
    (tmp_path / "cifar10").mkdir()
    x = np.random.default_rng(0).integers(0, 255, (12, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "cifar10" / "test.npz", x=x, y=np.arange(12) % 10)
    make_cifar(tmp_path, tmp_path / "out", slice(4, 12), ("contrast",))
    images, labels = load_phase(tmp_path / "out", "clean")
    assert labels.tolist() == [4, 5, 6, 7, 8, 9, 0, 1]
    torch.testing.assert_close(images, torch.from_numpy(x[4:]).permute(0, 3, 1, 2).float() / 255)
    for name in PHASES[2:]:
        folder = tmp_path / "out" / "CIFAR-10-C"
        (folder / f"{name}.npy").symlink_to(folder / "contrast.npy") if name != "contrast" else None
    (folder / "gaussian_noise.npy").symlink_to(folder / "contrast.npy")
    found = list(batches(Stream("s", batch=4, images=8, rubbish=True), tmp_path / "out", 0))
    without = [x for x, y in found if y is None]
    assert len(without) == len(RUBBISH) * RUBBISH_BATCHES and len(found) - len(without) == 2 * len(PHASES)
    generator = torch.Generator().manual_seed(0)
    noise, constant, bright = (rubbish(kind, 3, generator) for kind in RUBBISH)
    assert noise.std() > 0.2 and constant.flatten(1).std(1).max() == 0 and bright.min() >= 0.97


def test_no_imagenet_image_has_two_uses(tmp_path, monkeypatch):
    monkeypatch.setattr(shifts, "COMMON", ("contrast",))
    monkeypatch.setattr(shifts, "EXTRA", ("saturate",))
    (tmp_path / "wnids.txt").write_text("\n".join(f"n{number}" for number in range(4)))
    with zipfile.ZipFile(tmp_path / "val_2per_class_224.zip", "w") as archive:
        for number in range(4):
            for name in "ab":
                image = io.BytesIO()
                Image.new("RGB", (224, 224), (60 * number, 90, 30)).save(image, "WEBP")
                archive.writestr(f"{number:03}/{name}.webp", image.getvalue())
    make_imagenet(tmp_path, tmp_path / "out")
    files = {
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*") if path.is_file()
    }
    assert {name for name in files if name.startswith("source/")} == {f"source/n{number}/b.webp" for number in range(4)}
    corrupted = {name for name in files if name.endswith(".JPEG")}
    assert corrupted == {
        *(f"reported/ImageNet-C/contrast/5/n{number}/a.JPEG" for number in (0, 2)),
        "choosing/ImageNet-C/saturate/5/n1/a.JPEG",
    }
