"""PointDA-10 in its true layout, of parametric shapes instead of furniture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tta_cattan.bench.data.clouds import SHAPES, sample_shape, scan, to_unit_sphere
from tta_cattan.bench.data.pointda10 import CLASSES, FOLDER, PARTS


def write_folders(root: Path, domain: str, per_class: int = 2, n: int = 96) -> Path:
    """Write ``<domain>/<class>/{train,test}/*.npy``, in another unit and off the origin."""
    rng = np.random.default_rng(["modelnet", "shapenet"].index(domain))
    for name, shape in zip(CLASSES, SHAPES, strict=True):
        for part in PARTS:
            folder = root / FOLDER / domain / name / part
            folder.mkdir(parents=True)
            for index in range(per_class):
                np.save(folder / f"{name}_{index:04d}.npy", (3 * sample_shape(shape, n, rng) + 5).astype(np.float32))
    return root / FOLDER / domain


def write_scannet(root: Path, per_class: int = 2, n: int = 96) -> Path:
    """Write ``scannet/{train,test}_0.h5`` of shifted shapes, with colours after the coordinates, and the file lists."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(2)
    folder = root / FOLDER / "scannet"
    folder.mkdir(parents=True)
    for part in PARTS:
        labels = np.repeat(np.arange(len(CLASSES)), per_class)
        clouds = [scan(to_unit_sphere(sample_shape(list(SHAPES)[label], n, rng)), 1, rng) for label in labels]
        with h5py.File(folder / f"{part}_0.h5", "w") as file:
            file["data"] = np.concatenate([clouds, rng.random((len(labels), n, 3))], 2)
            file["label"] = labels.astype(np.int32)
        (folder / f"{part}_files.txt").write_text(f"./{part}_0.h5\n")
    return folder
