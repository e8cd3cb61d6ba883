"""The data of the study: made once from the files of real images, and a benchmark that only chooses."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePath

import numpy as np

from benchmarks.accuracy.grid import SEVERAL
from benchmarks.accuracy.left_on import PHASES
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY
from tta_cattan.bench.data.corruptions import COMMON, EXTRA
from tta_cattan.bench.data.corruptions.make import Task, corrupt_array_file, corrupt_folder
from tta_cattan.bench.data.datasets import read_npz
from tta_cattan.bench.data.digits import DigitsDA
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import atomic_path

REPORTED, CHOOSING = slice(0, 1000), slice(4000, 5000)  # of CIFAR-10's test images
CLEAN = "reported-clean", "choosing-clean"  # ImageNet images


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


def make_imagenet(data: Path, out: Path) -> None:
    """Split the validation images, two a class, into source, choosing and reported ones; corrupt the last two.

    The second image of each class is a source image. The first is reported if the class's number is even, and chooses
    if its remainder by four is one.
    """
    names = (data / "wnids.txt").read_text().split()
    with zipfile.ZipFile(data / "val_2per_class_224.zip") as archive:
        images = sorted(name for name in archive.namelist() if name.endswith(".webp"))
        for first, second in zip(images[::2], images[1::2], strict=True):
            number = int(PurePath(first).parent.name)
            use = (CLEAN[0], CLEAN[1], CLEAN[0], "")[number % 4]
            for image, folder in ((first, use), (second, "source"))[not use :]:
                path = out / folder / names[number] / PurePath(image).name
                if not path.is_file():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with atomic_path(path) as temporary:
                        temporary.write_bytes(archive.read(image))
    for folder, corruptions in zip(CLEAN, (COMMON, EXTRA), strict=True):
        corrupt_folder(
            out / folder, out / folder.removesuffix("-clean") / "ImageNet-C", Task(corruptions, (5,), "imagenet")
        )


def make_all(data: Path, out: Path, names: Sequence[str]) -> None:
    """Make what is missing of the data for the tables ``names``."""
    if any(name.startswith(("cifar", "left-on")) for name in names):
        make_cifar(data, out / "cifar-reported", REPORTED, tuple(dict.fromkeys((*SEVERAL, *PHASES[1:]))))
        make_cifar(data, out / "cifar-choosing", CHOOSING, EXTRA)
    if any(name.startswith("imagenet") for name in names):
        make_imagenet(data / "imagenet", out / "imagenet")
    if "digits" in names:
        make_digits(data, out / "digits")
    for name in {"office31", "officehome"} & set(names):
        for folder in ("office31", "officehome"):
            if not (out / "features" / folder).is_dir():
                raise UserError(
                    f"{name} needs {out / 'features' / folder}: make it with `tta-cattan extract-features --cfg "
                    f"cfgs/{folder}_features/extract.yaml --out {out / 'features' / folder}`"
                )
