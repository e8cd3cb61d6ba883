"""Reading PointDA-10's files: one ``.npy`` per cloud in class folders, or many clouds in ``.h5`` files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tta_cattan.util.errors import UserError

PARTS = ("train", "test")


def missing_in(folder: Path, classes: Sequence[str]) -> str | None:
    """Return what ``folder`` lacks of the layout of its domain, or None; ScanNet's has ``.h5`` files."""
    if not folder.is_dir():
        return f"{folder} does not exist"
    for part in PARTS:
        if is_packed(folder):
            if not packed_files(folder, part):
                return f"{folder} has no {part}_*.h5"
            continue
        for name in classes:
            if not (folder / name / part).is_dir():
                return f"{folder / name / part} does not exist"
            if not any((folder / name / part).glob("*.npy")):
                return f"{folder / name / part} holds no .npy file"
    return None


def is_packed(folder: Path) -> bool:
    """Tell whether a domain's clouds lie in ``.h5`` files, as ScanNet's do."""
    return folder.name == "scannet"


def packed_files(folder: Path, part: str) -> list[Path]:
    """Return the ``.h5`` files of one part."""
    return sorted(folder.glob(f"{part}_*.h5"))


def read_clouds(folder: Path, part: str, classes: Sequence[str]) -> Iterator[tuple[np.ndarray, int, str]]:
    """Yield (points, label, where it lies) of every cloud of one part, in a fixed order."""
    if is_packed(folder):
        for path in packed_files(folder, part):
            yield from _read_h5(path, len(classes))
        return
    unknown = sorted({p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")} - set(classes))
    if unknown:
        raise UserError(f"{folder / unknown[0]} is the folder of no known class: they are {', '.join(classes)}")
    for label, name in enumerate(classes):
        for path in sorted((folder / name / part).glob("*.npy")):
            yield _checked(_read_npy(path), str(path)), label, str(path)


def _read_npy(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, error) from error


def _read_h5(path: Path, num_classes: int) -> Iterator[tuple[np.ndarray, int, str]]:
    """Yield the clouds of a file with ``data`` (clouds x points x 3 or more) and ``label``."""
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise UserError(f"{path} needs h5py, which is not installed: `pip install 'tta-cattan[points]'`") from error
    try:
        with h5py.File(path, "r") as file:
            clouds, labels = file["data"][:], file["label"][:].reshape(-1)
    except (OSError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error
    if len(clouds) != len(labels):
        raise UserError(f"{path} has {len(clouds)} clouds and {len(labels)} labels: get it again")
    for index, (points, label) in enumerate(zip(clouds, labels, strict=True)):
        where = f"{path}, cloud {index}"
        if not 0 <= label < num_classes:
            raise UserError(f"{where} has the label {label}: it must be in 0..{num_classes - 1}")
        yield _checked(points, where), int(label), where


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"point cloud file {path} cannot be read ({error}): get it again or remove it")


def _checked(points: np.ndarray, where: str) -> np.ndarray:
    """Return the coordinates of a cloud (n x 3; colours that follow them are left out), or say what is wrong."""
    if points.ndim != 2 or points.shape[1] < 3 or not np.issubdtype(points.dtype, np.number):
        raise UserError(
            f"{where} is {points.dtype} of shape {points.shape}: it must be points x 3 numbers; get it again or remove "
            "it"
        )
    points = points[:, :3].astype(np.float32)
    if not np.isfinite(points).all():
        raise UserError(f"{where} has coordinates that are not finite: get it again or remove it")
    if not len(points) or (points == points[0]).all():
        raise UserError(f"{where} has no two different points: get it again or remove it")
    return points
