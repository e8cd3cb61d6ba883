"""CIFAR-10-C, CIFAR-100-C and their clean test sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from tta_cattan.bench import Domain
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, Benchmark
from tta_cattan.bench.data.corruptions import COMMON, EXTRA
from tta_cattan.bench.data.datasets import (
    check_count,
    check_images,
    count_per_class,
    first,
    identity_of_rows,
    load_npz,
    read_npz,
    to_tensor,
)
from tta_cattan.util.door import checked_array, checked_labels, open_npy
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import identity_of_files
from tta_cattan.util.upstream import import_torchvision

N_TEST, N_TRAIN = 10000, 50000
_IMAGE = (32, 32, 3)


class _Cifar(Benchmark):
    """What the corrupted and the clean sets share: the clean data in torchvision's layout."""

    torchvision_class: str
    clean_folder: str
    folder: str  # of the corrupted images
    record: str  # their Zenodo record

    def has_source(self) -> bool:
        return bool(self.cfg.DATA.SOURCE_DIR) or self._has_clean()

    def source(self) -> TensorDataset:
        """Return the training images: DATA.SOURCE_DIR's ``.npz`` file, or torchvision's files in DATA_DIR."""
        if self.cfg.DATA.SOURCE_DIR:
            return load_npz(self.cfg.DATA.SOURCE_DIR, self.num_classes)
        return self._clean(train=True) if self._has_clean() else super().source()

    def source_count(self, per_class: int = 0) -> int:
        """Return the number of training images, from the labels alone; torchvision's files have a known number."""
        if not self.cfg.DATA.SOURCE_DIR:
            return min(N_TRAIN, per_class * self.num_classes or N_TRAIN)
        own = self.cfg.DATA.SOURCE_DIR
        labels = torch.from_numpy(checked_labels(f"y in {own}", read_npz(own, ("y",))[0], None, self.num_classes))
        return count_per_class(TensorDataset(labels, labels), per_class)

    def describe_source(self) -> dict[str, Any]:
        own = Path(self.cfg.DATA.SOURCE_DIR)
        identity = identity_of_files([own], own.parent) if own.name else self._clean_identity()
        return {"name": f"{self.torchvision_class} train", "from": own.name or "torchvision", "files": identity}

    def _made(self, name: str) -> Path:
        return Path(self.cfg.DATA_DIR) / self.folder / name

    def _has_clean(self) -> bool:
        return (Path(self.cfg.DATA_DIR) / self.clean_folder).is_dir()

    def _clean_identity(self) -> str:
        folder = Path(self.cfg.DATA_DIR) / self.clean_folder
        return identity_of_files(sorted(path for path in folder.glob("*") if path.is_file()), folder)

    def _clean(self, train: bool) -> TensorDataset:
        factory = getattr(import_torchvision("torchvision.datasets"), self.torchvision_class)
        try:
            data = factory(self.cfg.DATA_DIR, train=train, download=False)
        except RuntimeError as error:
            raise UserError(f"{self.clean_folder} in {self.cfg.DATA_DIR} is damaged ({error}): get it again") from error
        return TensorDataset(to_tensor(data.data), torch.tensor(data.targets))


class _CifarC(_Cifar):
    """A CIFAR-C folder of ``<corruption>.npy`` files (50,000 x 32 x 32 x 3: 10,000 per severity) and ``labels.npy``.

    Note: with n < 10,000 labels, a file of 5 n rows has n per severity.
    """

    def check(self) -> None:
        """Check that every file of the config's corruptions exists and holds images; nothing is downloaded."""
        self.check_corruptions((*COMMON, *EXTRA), clean=f"{self.family}_clean")
        root = Path(self.cfg.DATA_DIR) / self.folder
        for path in (root / "labels.npy", *(root / f"{name}.npy" for name in self.cfg.CORRUPTION.TYPE)):
            if not path.is_file():
                raise UserError(
                    f"{path} is missing. Expected: {root}/labels.npy and {root}/<corruption>.npy, one per corruption "
                    f"(2.9 GB in all), from Zenodo record {self.record}, {self.folder}.tar, unpacked in DATA_DIR "
                    f"({self.cfg.DATA_DIR}); or make them from your own images with `tta-cattan make-corruptions`"
                )
        there = min(N_TEST, len(self._labels()))
        check_count(self.cfg.CORRUPTION.NUM_EX, there, f"{root}/labels.npy counts")
        for domain in self.domains():
            self._check_rows(domain)

    def _check_rows(self, domain: Domain) -> None:
        """Refuse a severity whose rows are not one RGB image per label, for example because it was not generated."""
        path = self._made(f"{domain.name}.npy")
        images = checked_array(str(path), open_npy(path), "uint8", (None, *_IMAGE))
        rows, n = self._rows(domain), self._count()
        name = f"{path}, severity {domain.severity}"
        if len(images) < rows.stop:
            raise UserError(
                f"{path} has {len(images):,} rows: severity {domain.severity} is the {n:,} rows from "
                f"{rows.start:,} on; get it again"
            )
        black = _black_rows_at_end(images[rows])
        if black == n or black > 1:
            raise UserError(
                f"{name}: the last {black:,} of the {n:,} images that labels.npy counts are all zero: this severity "
                f"was not made, or not for all labels; make it with `tta-cattan make-corruptions --severities "
                f"{domain.severity}`"
            )

    def _count(self) -> int:
        there, asked = min(N_TEST, len(self._labels())), self.cfg.CORRUPTION.NUM_EX
        return there if asked < 0 else min(asked, there)

    def _labels(self) -> np.ndarray:
        path = self._made("labels.npy")
        return checked_labels(str(path), open_npy(path), None, self.num_classes)

    def _rows(self, domain: Domain) -> slice:
        held, labels = len(open_npy(self._made(f"{domain.name}.npy"))), len(self._labels())
        start = (domain.severity - 1) * (labels if held == 5 * labels else N_TEST)
        return slice(start, start + self._count())

    def target(self, domain: Domain, seed: int = 0) -> TensorDataset:
        """Return the first CORRUPTION.NUM_EX images of a corruption and their labels."""
        rows = self._rows(domain)
        images = open_npy(self._made(f"{domain.name}.npy"))[rows]
        labels = torch.from_numpy(self._labels()[: rows.stop - rows.start])
        return TensorDataset(to_tensor(np.array(images)), labels)

    def describe(self) -> dict[str, Any]:
        return {"name": self.folder, "num_ex": self.cfg.CORRUPTION.NUM_EX}

    def identity(self, domain: Domain) -> str:
        """Return the identity of the images and labels that are evaluated; the file may hold more."""
        rows = self._rows(domain)
        labels = identity_of_rows(self._made("labels.npy"), slice(rows.stop - rows.start))
        return identity_of_rows(self._made(f"{domain.name}.npy"), rows, [labels])


def _black_rows_at_end(images: np.ndarray) -> int:
    """Return how many images at the end are all zero, as padding is."""
    filled = np.flatnonzero(images.reshape(len(images), -1).any(1))
    return len(images) - 1 - int(filled[-1]) if len(filled) else len(images)


class _CifarClean(_Cifar):
    """The clean test set, in torchvision's layout or in ``clean.npy``, where ``make-corruptions`` saves its images."""

    def domains(self) -> list[Domain]:
        return [Domain("clean")]

    def check(self) -> None:
        """Check that the files exist; nothing is downloaded."""
        if not self._has_clean() and not self._made("clean.npy").is_file():
            raise UserError(
                f"{Path(self.cfg.DATA_DIR) / self.clean_folder} is missing: "
                f"`torchvision.datasets.{self.torchvision_class}(DATA_DIR, download=True)` gets it (170 MB)"
            )

    def target(self, domain: Domain, seed: int = 0) -> TensorDataset:
        """Return the first CORRUPTION.NUM_EX test images."""
        if self._has_clean():
            return first(self._clean(train=False), self.cfg.CORRUPTION.NUM_EX)
        images, labels = open_npy(self._made("clean.npy")), open_npy(self._made("labels.npy"))
        labels = check_images(self._made("clean.npy"), images, labels, self.num_classes)
        data = TensorDataset(to_tensor(np.array(images)), torch.from_numpy(labels))
        return first(data, self.cfg.CORRUPTION.NUM_EX)

    def describe(self) -> dict[str, Any]:
        return {"name": self.torchvision_class, "num_ex": self.cfg.CORRUPTION.NUM_EX}

    def identity(self, domain: Domain) -> str:
        if self._has_clean():
            return self._clean_identity()
        return identity_of_files([self._made("clean.npy"), self._made("labels.npy")], self._made(""))


class _Cifar10:
    num_classes = 10
    family: str | None = "cifar10"
    torchvision_class, clean_folder = "CIFAR10", "cifar-10-batches-py"
    folder, record = "CIFAR-10-C", "2535967"


class _Cifar100:
    num_classes = 100
    family: str | None = "cifar100"
    torchvision_class, clean_folder = "CIFAR100", "cifar-100-python"
    folder, record = "CIFAR-100-C", "3555552"


@BENCHMARK_REGISTRY.register("cifar10")  # TENT's name for it
@BENCHMARK_REGISTRY.register("cifar10_c")
class Cifar10C(_Cifar10, _CifarC):
    """CIFAR-10-C."""


@BENCHMARK_REGISTRY.register("cifar100")
@BENCHMARK_REGISTRY.register("cifar100_c")
class Cifar100C(_Cifar100, _CifarC):
    """CIFAR-100-C."""


@BENCHMARK_REGISTRY.register("cifar10_clean")
class Cifar10Clean(_Cifar10, _CifarClean):
    """CIFAR-10's test set."""


@BENCHMARK_REGISTRY.register("cifar100_clean")
class Cifar100Clean(_Cifar100, _CifarClean):
    """CIFAR-100's test set."""
