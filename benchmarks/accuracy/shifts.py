"""The data of the study: made once from the files of real images, and two benchmarks that only choose or check."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from torch.utils.data import TensorDataset

from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, Benchmark
from tta_cattan.bench.data.corruptions import COMMON, EXTRA
from tta_cattan.bench.data.corruptions.make import Task, corrupt_array_file, corrupt_folder
from tta_cattan.bench.data.datasets import first, load_npz, read_npz
from tta_cattan.bench.data.domain_arrays import DigitsDA
from tta_cattan.bench.domain import Domain
from tta_cattan.util.files import atomic_path

REPORTED, CHOOSING, FRESH = slice(0, 2000), slice(4000, 5000), slice(6000, 7000)  # of CIFAR-10's test images
IMAGENET_CORRUPTIONS = ("gaussian_noise", "defocus_blur", "fog", "jpeg_compression")


@BENCHMARK_REGISTRY.register("study_digits")
class ChoosingDigits(DigitsDA):
    """MNIST and USPS as sources, scikit-learn's digits as the target that chooses."""

    short_names = {"mnist": "M", "usps": "U", "uci": "D"}


@BENCHMARK_REGISTRY.register("study_uneven")
class UnevenDigits(DigitsDA):
    """MNIST as the source, USPS without the digits from 5 or from 2 on, or with ever fewer of each, as targets."""

    short_names = {"mnist": "M", "to4": "0-4", "to1": "0-1", "tail": "tail"}


@BENCHMARK_REGISTRY.register("study_clean")
class CleanImages(Benchmark):
    """Clean CIFAR-10 test images: what adaptation must not harm."""

    num_classes = 10
    family = "cifar10"

    def check(self) -> None:
        """Nothing can be missing: the study has written it."""

    def domains(self) -> list[Domain]:
        return [Domain("clean")]

    def target(self, domain: Domain, seed: int = 0) -> TensorDataset:
        return first(load_npz(Path(self.cfg.DATA_DIR) / "clean.npz", self.num_classes), self.cfg.CORRUPTION.NUM_EX)

    def has_source(self) -> bool:
        return bool(self.cfg.DATA.SOURCE_DIR)

    def source(self) -> TensorDataset:
        return load_npz(self.cfg.DATA.SOURCE_DIR, self.num_classes)

    def describe_source(self) -> dict[str, object]:
        return {"name": "CIFAR-10 train", "from": Path(self.cfg.DATA.SOURCE_DIR).name}

    def describe(self) -> dict[str, object]:
        return {"name": "CIFAR-10 test, clean", "num_ex": self.cfg.CORRUPTION.NUM_EX}


def make_cifar(data: Path, out: Path, part: slice, corruptions: tuple[str, ...]) -> None:
    """Write a part of the test images to ``out``, clean and under corruptions at severity 5."""
    clean = out / "clean.npz"
    if not clean.is_file():
        x, y = read_npz(data / "cifar10" / "test.npz", ("x", "y"))
        with atomic_path(clean) as path, path.open("wb") as target:
            np.savez(target, x=x[part], y=y[part])
    corrupt_array_file(clean, out / "CIFAR-10-C", Task(corruptions, (5,), "cifar"))


def make_digits(data: Path, out: Path) -> None:
    """Put MNIST, USPS, scikit-learn's digits and uneven parts of USPS side by side."""
    from sklearn.datasets import load_digits

    out.mkdir(parents=True, exist_ok=True)
    for name in ("mnist", "usps"):
        link = out / f"{name}.npz"
        if not link.exists():
            link.symlink_to((data / "digits" / f"{name}.npz").resolve())
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))
    x = (digits.images[order] * (255 / 16)).round().astype(np.uint8)
    _write_digits(out / "uci.npz", x, digits.target[order])
    _, _, x, y = read_npz(out / "usps.npz", ("x_train", "y_train", "x_test", "y_test"))
    rng = np.random.default_rng(0)
    for name, kept in {"to4": y < 5, "to1": y < 2, "tail": rng.random(len(y)) < 0.6**y}.items():
        _write_digits(out / f"{name}.npz", x[kept], y[kept])


def _write_digits(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Write all images as a digits file, half of them as its training part; a target has both."""
    with atomic_path(path) as temporary, temporary.open("wb") as target:
        half = len(x) // 2
        np.savez(target, x_train=x[:half], y_train=y[:half], x_test=x[half:], y_test=y[half:])


def make_imagenet(data: Path, out: Path, size: int) -> None:
    """Write the ImageNet images under four corruptions at severity 5."""
    clean = out / "clean"
    with zipfile.ZipFile(data / "imagenet" / "images_224.zip") as archive:
        for name in archive.namelist():
            folder, _, file = name.strip("/").rpartition("/")
            goal = clean / Path(folder).name / file
            if file.endswith(".png") and not goal.is_file():
                goal.parent.mkdir(parents=True, exist_ok=True)
                with atomic_path(goal) as path:
                    path.write_bytes(archive.read(name))
    corrupt_folder(clean, out / "ImageNet-C", Task(IMAGENET_CORRUPTIONS, (5,), "imagenet", size=size))


def make_all(data: Path, out: Path) -> None:
    """Make what is missing."""
    make_cifar(data, out / "cifar-reported", REPORTED, COMMON)
    make_cifar(data, out / "cifar-choosing", CHOOSING, EXTRA)
    make_cifar(data, out / "cifar-fresh", FRESH, COMMON)
    make_digits(data, out / "digits")
    make_imagenet(data, out / "imagenet", 128)
