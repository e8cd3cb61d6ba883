"""The data of the study: made once from the files of real images, and a benchmark that only chooses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.accuracy.grid import SEVERAL
from benchmarks.accuracy.left_on import PHASES
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY
from tta_cattan.bench.data.corruptions import EXTRA
from tta_cattan.bench.data.corruptions.make import Task, corrupt_array_file
from tta_cattan.bench.data.datasets import read_npz
from tta_cattan.bench.data.digits import DigitsDA
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import atomic_path

REPORTED, CHOOSING = slice(0, 1000), slice(4000, 5000)  # of CIFAR-10's test images


@BENCHMARK_REGISTRY.register("study_digits")
class ChoosingDigits(DigitsDA):
    """MNIST and USPS as sources, scikit-learn's digits as the target that chooses."""

    short_names = {"mnist": "M", "usps": "U", "uci": "D"}


def make_cifar(data: Path, out: Path, part: slice, corruptions: tuple[str, ...]) -> None:
    """Write a part of the test images to ``out``, clean and under corruptions at severity 5."""
    clean = out / "clean.npz"
    if not clean.is_file():
        x, y = read_npz(data / "cifar10" / "test.npz", ("x", "y"))
        with atomic_path(clean) as path, path.open("wb") as target:
            np.savez(target, x=x[part], y=y[part])
    corrupt_array_file(clean, out / "CIFAR-10-C", Task(corruptions, (5,), "cifar"))


def make_digits(data: Path, out: Path) -> None:
    """Put MNIST, USPS and scikit-learn's digits side by side."""
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


def _write_digits(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Write all images as a digits file, half of them as its training part; a target has both."""
    with atomic_path(path) as temporary, temporary.open("wb") as target:
        half = len(x) // 2
        np.savez(target, x_train=x[:half], y_train=y[:half], x_test=x[half:], y_test=y[half:])


def make_all(data: Path, out: Path, names: Sequence[str]) -> None:
    """Make what is missing of the data for the tables ``names``."""
    if any(name.startswith(("cifar", "left-on")) for name in names):
        make_cifar(data, out / "cifar-reported", REPORTED, tuple(dict.fromkeys((*SEVERAL, *PHASES[1:]))))
        make_cifar(data, out / "cifar-choosing", CHOOSING, EXTRA)
    if "digits" in names:
        make_digits(data, out / "digits")
    for name in {"office31", "officehome"} & set(names):
        for folder in ("office31", "officehome"):
            if not (out / "features" / folder).is_dir():
                raise UserError(
                    f"{name} needs {out / 'features' / folder}: make it with `tta-cattan extract-features --cfg "
                    f"cfgs/{folder}_features/extract.yaml --out {out / 'features' / folder}`"
                )
