"""``make-corruptions``: the layouts of ImageNet-C and CIFAR-C from one's own images, the same however they are made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from digits_runs import need_robustbench
from PIL import Image

from tta_cattan.bench import Domain
from tta_cattan.bench.data import BENCHMARK_REGISTRY
from tta_cattan.bench.data.corruptions import corrupt_batch, corruption, image_rng
from tta_cattan.bench.data.corruptions.make import RECIPE_FILE
from tta_cattan.cli.main import main
from tta_cattan.config import load_cfg
from tta_cattan.util.errors import UserError
from tta_cattan.util.upstream import import_robustbench

NAMES = ("gaussian_noise", "contrast")


def benchmark(name: str, data_dir, num_ex: int):
    values = {"CORRUPTION.DATASET": name, "DATA_DIR": data_dir, "CORRUPTION.TYPE": ",".join(NAMES)}
    values |= {"CORRUPTION.SEVERITY": "3,5", "CORRUPTION.NUM_EX": num_ex}
    return BENCHMARK_REGISTRY.get(name)(load_cfg(None, [str(part) for pair in values.items() for part in pair]))


def make(images, out, *more: str, corruptions: str = ",".join(NAMES), severities: str = "3,5", workers: int = 1) -> int:
    arguments = ["make-corruptions", "--images", str(images), "--out", str(out), "--corruptions", corruptions]
    return main([*arguments, "--severities", severities, "--workers", str(workers), *more])


def contents(folder) -> dict[str, bytes]:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != RECIPE_FILE)
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


@pytest.fixture
def clean(tmp_path):
    """Three images in two classes: of the right size, larger, and grey."""
    rng = np.random.default_rng(0)
    for name, shape in (
        ("n01440764/a.png", (32, 32, 3)),
        ("n01440764/b.jpg", (40, 60, 3)),
        ("n01443537/c.png", (32, 32)),
    ):
        path = tmp_path / "clean" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(path)
    (tmp_path / "clean" / "n01443537" / "notes.txt").write_text("not an image")
    return tmp_path / "clean"


def test_folders_become_imagenet_c(clean, tmp_path, capsys):
    need_robustbench()
    out = tmp_path / "data" / "ImageNet-C"
    assert make(clean, out, "--size", "32") == 0
    assert f"{out}: 12 files made, 0 were there already" in capsys.readouterr().out
    images = ("n01440764/a.JPEG", "n01440764/b.JPEG", "n01443537/c.JPEG")
    assert set(contents(out)) == {f"{name}/{s}/{image}" for name in NAMES for s in (3, 5) for image in images}

    subject = benchmark("imagenet_c", tmp_path / "data", -1)
    subject.check()
    data = subject.target(Domain("contrast", 5))
    assert [label for _, label in data.samples] == [0, 0, 1] and data[1][0].shape == (3, 32, 32)
    pixels = np.asarray(Image.open(clean / "n01440764" / "a.png"))
    rng = image_rng("contrast", 5, "n01440764/a.JPEG", 0)
    expected = corruption("contrast", 5, "imagenet")(pixels, rng).astype(float)
    shown = data[0][0].permute(1, 2, 0).numpy() * 255
    assert np.abs(shown - expected).mean() < 6, "the same image but for JPEG"
    assert np.abs(shown - pixels).mean() > 20


def test_it_is_deterministic_parallel_and_resumable(clean, tmp_path, capsys):
    assert make(clean, tmp_path / "one", "--size", "32") == 0
    assert make(clean, tmp_path / "two", "--size", "32", workers=2) == 0
    one = contents(tmp_path / "one")
    assert one == contents(tmp_path / "two")
    lost = tmp_path / "one" / "gaussian_noise" / "5" / "n01440764" / "b.JPEG"
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*.JPEG") if path != lost}
    lost.unlink()
    capsys.readouterr()
    assert make(clean, tmp_path / "one", "--size", "32") == 0
    assert "1 files made, 11 were there already" in capsys.readouterr().out
    assert contents(tmp_path / "one") == one
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert make(clean, tmp_path / "seed", "--size", "32", "--seed", "1") == 0
    other = contents(tmp_path / "seed")
    assert all(other[name] != one[name] for name in one if "noise" in name), "another seed, other draws"


def test_arrays_become_cifar_c(tmp_path, capsys):
    need_robustbench()
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (7, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, 7)
    np.savez(tmp_path / "clean.npz", x=x, y=y)
    out = tmp_path / "data" / "CIFAR-10-C"
    assert make(tmp_path / "clean.npz", out, corruptions="contrast", severities="5") == 0
    assert "1 files made, 0 were there already" in capsys.readouterr().out
    assert make(tmp_path / "clean.npz", out) == 0
    assert "2 files made" in capsys.readouterr().out, "a severity that was not asked for before is added to its file"
    times = {path: path.stat().st_mtime_ns for path in out.glob("*[no][it]*.npy")}
    assert {path.name for path in out.iterdir()} == {
        "labels.npy", "clean.npy", "gaussian_noise.npy", "contrast.npy", RECIPE_FILE,
    }  # fmt: skip
    assert make(tmp_path / "clean.npz", out) == 0
    assert "0 files made, 2 were there already" in capsys.readouterr().out
    assert len(times) == 2 and {path: path.stat().st_mtime_ns for path in times} == times
    subject = benchmark("cifar10_c", tmp_path / "data", 7)
    subject.check()
    for name in NAMES:
        for severity in (3, 5):
            images, labels = subject.target(Domain(name, severity)).tensors
            expected = corrupt_batch(x, name, severity, strengths="cifar")
            assert torch.equal((images * 255).round().byte(), torch.from_numpy(expected).permute(0, 3, 1, 2))
            assert labels.tolist() == y.tolist()
    images, labels = subject.clean().tensors
    assert torch.equal((images * 255).round().byte(), torch.from_numpy(x).permute(0, 3, 1, 2))
    assert labels.tolist() == y.tolist()
    rows = np.load(out / "contrast.npy", mmap_mode="r")
    assert rows.shape == (35, 32, 32, 3) and not rows[:7].any() and rows[28:].any((1, 2, 3)).all()

    np.savez(tmp_path / "other.npz", x=np.zeros((7, 48, 48, 3), np.uint8), y=y)
    assert make(tmp_path / "other.npz", out) == 2
    assert "choose another output folder" in capsys.readouterr().err


def test_mistakes_are_one_line(clean, tmp_path, capsys):
    def error(*args: object, **options: object) -> str:
        assert make(*args, **options) == 2
        shown = capsys.readouterr().err
        assert shown.startswith("error: ") and len(shown.splitlines()) == 1
        return shown

    out = tmp_path / "out"
    assert "Did you mean 'contrast'?" in error(clean, out, corruptions="contrst")
    assert "from 1 to 5" in error(clean, out, severities="5,6") and "from 1 to 5" in error(clean, out, severities="x")
    assert "does not exist" in error(tmp_path / "absent", out)
    (tmp_path / "empty").mkdir()
    assert "holds no <class>/<image> files" in error(tmp_path / "empty", out)
    (tmp_path / "bad.npz").write_text("<html>")
    assert "bad.npz is not an .npz file" in error(tmp_path / "bad.npz", out)
    assert "at least 16 pixels" in error(clean, out, "--size", "8")
    assert not out.exists()
    (clean / "n01443537" / "d.png").write_bytes((clean / "n01443537" / "c.png").read_bytes()[:100])
    assert "d.png cannot be read" in error(clean, out, "--size", "32", corruptions="contrast", severities="5")
    assert "--workers -1" in error(clean, out, workers=-1)


def test_a_severity_that_was_not_made_is_refused(tmp_path):
    np.savez(tmp_path / "clean.npz", x=np.full((7, 32, 32, 3), 90, np.uint8), y=np.arange(7))
    assert make(tmp_path / "clean.npz", tmp_path / "data" / "CIFAR-10-C", severities="5") == 0
    with pytest.raises(UserError, match=r"noise.npy, severity 3: .* was not made.*make-corruptions --severities 3"):
        benchmark("cifar10_c", tmp_path / "data", 7).check()


def test_padded_files_are_for_other_loaders_and_padding_is_never_taken_for_images(tmp_path):
    need_robustbench()
    images = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "few.npz", x=images, y=np.arange(12) % 10)
    make(tmp_path / "few.npz", tmp_path / "plain" / "CIFAR-10-C")
    make(tmp_path / "few.npz", tmp_path / "padded" / "CIFAR-10-C", "--padded", corruptions="contrast")
    rows = np.load(tmp_path / "padded" / "CIFAR-10-C" / "contrast.npy", mmap_mode="r")
    assert len(rows) == 50000 and not rows[40012:40020].any()
    load = import_robustbench("robustbench.data").load_cifar10c
    for number in (-1, 5):
        (plain, labels), padded = (
            benchmark("cifar10_c", tmp_path / name, number).target(Domain("contrast", 5)).tensors
            for name in ("plain", "padded")
        )
        assert len(plain) == (12 if number != 5 else 5) and all(map(torch.equal, (plain, labels), padded))
        theirs = load(len(plain), 5, tmp_path / "padded", False, ["contrast"])
        assert torch.equal(plain, theirs[0]) and torch.equal(labels, theirs[1])
    with pytest.raises(UserError, match=r"NUM_EX = 500, and .*labels.npy counts 12 images"):
        benchmark("cifar10_c", tmp_path / "plain", 500).check()
