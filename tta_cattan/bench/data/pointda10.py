"""PointDA-10: ten classes of objects from ModelNet, ShapeNet and ScanNet, in PointDAN's public layout."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from tta_cattan.bench import Domain
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, DomainBenchmark
from tta_cattan.bench.data.clouds import (
    AUGMENTATION,
    CloudBenchmark,
    take_points,
    to_batch,
    to_unit_sphere,
    y_up_to_z_up,
)
from tta_cattan.util.door import checked_array, checked_labels, open_npy, parsing, regular_file
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_tensors

FOLDER = "PointDA_data"
PUBLISHED_POINTS = 1024
PARTS = ("train", "test")
_REMEDY = "get it again or remove it"
CLASSES = ("bathtub", "bed", "bookshelf", "cabinet", "chair", "lamp", "monitor", "plant", "sofa", "table")


def missing_in(folder: Path) -> str | None:
    """Return what is missing in a domain's folder, or None."""
    if not folder.is_dir():
        return f"{folder} does not exist"
    for part in PARTS:
        if is_packed(folder):
            if not packed_files(folder, part):
                return f"{folder} has no {part}_*.h5"
            continue
        for name in CLASSES:
            if not (folder / name / part).is_dir():
                return f"{folder / name / part} does not exist"
            if not any((folder / name / part).glob("*.npy")):
                return f"{folder / name / part} holds no .npy file"
    return None


def is_packed(folder: Path) -> bool:
    """Return whether a domain's clouds are in ``.h5`` files, as ScanNet's are."""
    return folder.name == "scannet"


def packed_files(folder: Path, part: str) -> list[Path]:
    return sorted(folder.glob(f"{part}_*.h5"))


def read_clouds(folder: Path, part: str) -> Iterator[tuple[np.ndarray, int, str]]:
    """Yield (points, label, file) of every cloud of one part, in a fixed order."""
    if is_packed(folder):
        for path in packed_files(folder, part):
            yield from _read_h5(path)
        return
    unknown = sorted({p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")} - set(CLASSES))
    if unknown:
        raise UserError(f"{folder / unknown[0]} is not the folder of a known class; they are {', '.join(CLASSES)}")
    for label, name in enumerate(CLASSES):
        for path in sorted((folder / name / part).glob("*.npy")):
            yield _checked(open_npy(path, _REMEDY), str(path)), label, str(path)


def _read_h5(path: Path) -> Iterator[tuple[np.ndarray, int, str]]:
    """Yield the clouds of a file with ``data`` (clouds x points x 3 or more) and ``label``."""
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise UserError(f"{path} needs h5py, which is not installed: `pip install 'tta-cattan[points]'`") from error
    problem = f"point cloud file {path} cannot be read"
    with parsing(problem, _REMEDY), h5py.File(regular_file(path, _REMEDY), "r") as file:
        clouds, labels = file["data"][:], file["label"][:].reshape(-1)
    checked_labels(f"the labels of {path}", labels, len(clouds), len(CLASSES))
    for index, (points, label) in enumerate(zip(clouds, labels, strict=True)):
        where = f"{path}, cloud {index}"
        yield _checked(points, where), int(label), where


def _checked(points: np.ndarray, where: str) -> np.ndarray:
    """Return the coordinates of a cloud (n x 3; colours after them are dropped), or say what is wrong."""
    points = points[:, :3] if points.ndim == 2 else points
    points = checked_array(where, points, "real", (None, 3), remedy=_REMEDY).astype(np.float32)
    if not np.isfinite(points).all() or (points == points[0]).all():
        raise UserError(f"{where} has no two different points in float32: {_REMEDY}")
    return points


@lru_cache(maxsize=8)
def load_part(folder: Path, part: str, n: int, upright: bool) -> TensorDataset:
    """Return one part of a domain as 3 x n tensors in the unit sphere; cached, because every cell needs it."""
    clouds, labels = [], []
    for points, label, where in read_clouds(folder, part):
        if upright and lies_down(folder.name, CLASSES[label]):
            points = y_up_to_z_up(points)
        points = take_points(points, n)
        if (points == points[0]).all():
            raise UserError(f"{where}: its first {n} points are one point; get it again or remove it")
        clouds.append(to_unit_sphere(points))
        labels.append(label)
    return TensorDataset(to_batch(clouds), torch.tensor(labels))


def lies_down(domain: str, name: str) -> bool:
    """Return whether the y axis is up in a file, as in ScanNet and, except for plants, in ShapeNet."""
    return domain == "scannet" or (domain == "shapenet" and name != "plant")


@lru_cache(maxsize=8)
def part_hash(folder: Path, part: str, n: int, upright: bool) -> str:
    """Return the hash of what ``load_part`` returns."""
    clouds, labels = load_part(folder, part, n, upright).tensors
    return sha256_tensors({"clouds": clouds, "labels": labels})


@BENCHMARK_REGISTRY.register("pointda10")
class PointDA10(CloudBenchmark, DomainBenchmark):
    """``DATA_DIR/PointDA_data/<domain>``: from the train part of DATA.SOURCE to DATA.TARGET."""

    short_names = {"modelnet": "M", "shapenet": "S", "scannet": "S*"}

    def check(self) -> None:
        """Check that all domains are complete, and read them: a damaged file is named before anything is trained."""
        for domain in self.used_domains():
            missing = missing_in(self._folder(domain))
            if missing:
                raise UserError(
                    f"{self.name} needs {domain}, and {missing}. Expected in DATA_DIR ({self.cfg.DATA_DIR}): "
                    f"{FOLDER} with modelnet/<class>/{{train,test}}/*.npy, shapenet/<class>/{{train,test}}/*.npy and "
                    f"scannet/{{train,test}}_*.h5; classes: {', '.join(CLASSES)}. The public record is PointDA-10, "
                    "linked from the README of github.com/canqin001/PointDAN"
                )
        self.source()
        for target in self.domains():
            self.whole_target(target)

    def whole_target(self, domain: Domain) -> TensorDataset:
        """Return the clouds of a target domain, of the parts that DATA.TARGET_PART names."""
        parts = [self._load(domain.name, part).tensors for part in self._target_parts()]
        return TensorDataset(*map(torch.cat, zip(*parts, strict=True)))

    def source(self) -> TensorDataset:
        return self._load(self.source_domain, "train")

    def describe_source(self) -> dict[str, Any]:
        digest = part_hash(self._folder(self.source_domain), "train", *self._form())
        return {"name": self.source_domain, "sha256": digest, "augmentation": AUGMENTATION}

    def describe(self) -> dict[str, Any]:
        targets = {
            domain.name: [part_hash(self._folder(domain.name), part, *self._form()) for part in self._target_parts()]
            for domain in self.domains()
        }
        return {"name": "pointda10", "targets": targets, "num_ex": self.cfg.CORRUPTION.NUM_EX}

    def differs_from_published(self) -> str:
        """Return how this data differs from the authors': their code reads the axes as they are in the files."""
        node = self.cfg.DATA
        if node.UPRIGHT or node.POINTS != PUBLISHED_POINTS:
            return f"DATA.UPRIGHT {node.UPRIGHT}, DATA.POINTS {node.POINTS}: the authors' code has False, 1024"
        return super().differs_from_published()

    def _target_parts(self) -> tuple[str, ...]:
        part = self.cfg.DATA.TARGET_PART
        return PARTS if part == "all" else (part,)

    def _load(self, domain: str, part: str) -> TensorDataset:
        return load_part(self._folder(domain), part, *self._form())

    def _form(self) -> tuple[int, bool]:
        return self.cfg.DATA.POINTS, self.cfg.DATA.UPRIGHT

    def _folder(self, domain: str) -> Path:
        return Path(self.cfg.DATA_DIR) / FOLDER / domain
