"""PointDA-10: ten classes of objects from ModelNet, ShapeNet and ScanNet, in PointDAN's public layout."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

from tta_cattan.bench.data.adaptation import DomainBenchmark
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY
from tta_cattan.bench.data.clouds.benchmark import AUGMENTATION, CloudBenchmark
from tta_cattan.bench.data.clouds.files import PARTS, missing_in, read_clouds
from tta_cattan.bench.data.clouds.geometry import take_points, to_batch, to_unit_sphere, y_up_to_z_up
from tta_cattan.bench.domain import Domain
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_tensors

FOLDER = "PointDA_data"
PUBLISHED_POINTS = 1024
CLASSES = ("bathtub", "bed", "bookshelf", "cabinet", "chair", "lamp", "monitor", "plant", "sofa", "table")


@lru_cache(maxsize=8)
def load_part(folder: Path, part: str, n: int, upright: bool) -> TensorDataset:
    """Return the clouds of one part of a domain as 3 x n tensors in the unit sphere; kept, as every cell asks again."""
    clouds, labels = [], []
    for points, label, where in read_clouds(folder, part, CLASSES):
        if upright and lies_down(folder.name, CLASSES[label]):
            points = y_up_to_z_up(points)
        points = take_points(points, n)
        if (points == points[0]).all():
            raise UserError(f"{where}: its first {n} points are one point; get it again or remove it")
        clouds.append(to_unit_sphere(points))
        labels.append(label)
    return TensorDataset(to_batch(clouds), torch.tensor(labels))


def lies_down(domain: str, name: str) -> bool:
    """Tell whether the y axis is up in a file: so it is in ScanNet and in ShapeNet, its plants excepted."""
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
        for domain in (self.source_domain, *(target.name for target in self.domains())):
            missing = missing_in(self._folder(domain), CLASSES)
            if missing:
                raise UserError(
                    f"{self.name} needs {domain}, and {missing}. Expected in DATA_DIR ({self.cfg.DATA_DIR}): "
                    f"{FOLDER} with modelnet/<class>/{{train,test}}/*.npy, shapenet/<class>/{{train,test}}/*.npy and "
                    f"scannet/{{train,test}}_*.h5; classes: {', '.join(CLASSES)}. The public record is PointDA-10, "
                    "linked from the README of github.com/canqin001/PointDAN"
                )
        self.source()
        for target in self.domains():
            self.target(target)

    def target(self, domain: Domain) -> Dataset:
        """Return the clouds of a target domain, of the parts that DATA.TARGET_PART names."""
        parts = [self._load(domain.name, part).tensors for part in self._target_parts()]
        return self.part(TensorDataset(*map(torch.cat, zip(*parts, strict=True))))

    def source(self) -> TensorDataset:
        """Return the training clouds of the source domain."""
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
        """Return what separates this data from the authors': their code reads the axes as they are in the files."""
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
