"""Corrupt whole data sets: in parallel, resumable, each image the same whatever the order.

A folder of corrupted images holds the recipe that it was made with, so that two recipes never mix in it.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from tta_cattan.bench.data.corruptions import corrupt_batch, corruption, image_rng
from tta_cattan.bench.data.corruptions.strengths import TableName
from tta_cattan.bench.data.datasets import check_images, read_npz
from tta_cattan.bench.data.image_files import EXTENSIONS, read_rgb
from tta_cattan.util.door import open_npy, read_json
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import atomic_path, save_array, sha256_file, write_text
from tta_cattan.util.progress import progress

T = TypeVar("T")

RECIPE_FILE = "corruptions.json"
_MOST_CLASSES = 256  # labels.npy is uint8
_JPEG_QUALITY = 85  # ImageNet-C's files are stored with it
CIFAR_ROWS = 10000  # per severity in CIFAR-C's files; other frameworks' loaders rely on it


@dataclass(frozen=True)
class Task:
    """What to generate from every image."""

    corruptions: Sequence[str]
    severities: Sequence[int]
    strengths: TableName
    seed: int = 0
    size: int = 224
    workers: int = 0
    padded: bool = False

    def recipe(self) -> dict[str, Any]:
        return {"seed": self.seed, "strengths": self.strengths}


def corrupt_folder(images: Path, out: Path, task: Task) -> tuple[int, int]:
    """Write ``out/<corruption>/<severity>/<class>/<image>.JPEG`` for each ``<class>/<image>``; return (made, kept)."""
    files = sorted(path for path in images.glob("*/*") if path.suffix.lower() in EXTENSIONS)
    if not files:
        raise UserError(f"{images} holds no <class>/<image> files ({', '.join(EXTENSIONS)})")
    _refuse_same_stems(files)
    ends = [file.relative_to(images).with_suffix(".JPEG") for file in (files[0], files[-1])]
    there = [out / c / str(s) / end for c in task.corruptions for s in task.severities for end in ends]
    keep_recipe(out, {**task.recipe(), "size": task.size}, files, images, there)
    work = partial(_corrupt_image_file, images, out, task)
    counts = list(_parallel(work, files, task.workers, "corrupting images"))
    total = len(files) * len(task.corruptions) * len(task.severities)
    return sum(counts), total - sum(counts)


def corrupt_array_file(images: Path, out: Path, task: Task) -> tuple[int, int]:
    """Write ``out/<corruption>.npy`` and ``labels.npy`` for an ``.npz`` file with n images; return (made, kept).

    A file has n rows for each of the five severities, or CIFAR-C's 10,000 if the task is ``padded``.

    Note: the rows of missing severities, and of padding, are zero. ``labels.npy`` has the true number of images, so
    that padding is never mistaken for images.
    """
    x, y = read_npz(images, ("x", "y"))
    check_images(images, x, y, _MOST_CLASSES)
    x, y = x[:CIFAR_ROWS], y[:CIFAR_ROWS]
    keep_recipe(out, task.recipe(), [images], images.parent, [out / f"{name}.npy" for name in task.corruptions])
    save_array(out / "labels.npy", y.astype(np.uint8))
    save_array(out / "clean.npy", x)  # on which forgetting is measured
    todo = [name for name in task.corruptions if _absent_severities(out / f"{name}.npy", x, task)]
    for _ in _parallel(partial(_corrupt_array, x, out, task), todo, task.workers, "corrupting arrays"):
        pass
    return len(todo), len(task.corruptions) - len(todo)


def _refuse_same_stems(files: Sequence[Path]) -> None:
    """Refuse two images of one folder whose corrupted files would have the same name."""
    by_stem: dict[Path, Path] = {}
    for file in files:
        other = by_stem.setdefault(file.with_suffix(""), file)
        if other is not file:
            raise UserError(f"{other} and {file} would both become {file.stem}.JPEG: rename one of them")


def keep_recipe(out: Path, asked: dict[str, Any], images: Sequence[Path], root: Path, there: Sequence[Path]) -> None:
    """Record in ``out`` how its images are made; refuse a folder made by another recipe or from other images.

    ``asked`` is what determines the images; ``images`` are the clean ones under ``root``; ``there`` are files in the
    folder that would be kept.
    """
    path, elsewhere = out / RECIPE_FILE, "choose another output folder"
    known: dict[str, Any] = {}
    if path.is_file():
        known = read_json(path, "a recipe", elsewhere)
        if not isinstance(known.get("images", {}), dict):
            raise UserError(f"{path} is not a recipe (its images are not by name): {elsewhere}")
    elif found := next((file for file in there if file.exists()), None):
        raise UserError(f"{found} exists without {path}, which says how it was made: {elsewhere}, or remove it")
    for option, value in asked.items():
        if known.get(option, value) != value:
            was = known[option]
            raise UserError(f"{out} was made with {option} {was}, and this run has {value}: {elsewhere}, or remove it")
    for name, identity in known.get("images", {}).items():
        # The name comes from a file: it may not lead out of the folder of the images, but links in that folder may.
        inside = not PurePath(name).is_absolute() and ".." not in PurePath(name).parts and (root / name).is_file()
        if not inside or sha256_file(root / name)[:12] != identity:
            raise UserError(f"{out} was made from other images than {root} (see {name}): {elsewhere}")
    hashes = {file.relative_to(root).as_posix(): sha256_file(file)[:12] for file in images}
    recipe = {**known, **asked, "images": {**hashes, **known.get("images", {})}}
    if recipe != known:
        write_text(path, json.dumps(recipe, indent=2, sort_keys=True) + "\n")


def _absent_severities(path: Path, x: np.ndarray, task: Task) -> list[int]:
    """Return the severities missing from a corruption's file: their rows are zero, or made from fewer images."""
    if not path.is_file():
        return list(task.severities)
    rows = _open_rows(path, _shape(x, task))
    starts = {severity: (severity - 1) * len(rows) // 5 for severity in task.severities}
    return [s for s, start in starts.items() if not (rows[start].any() and rows[start + len(x) - 1].any())]


def _shape(x: np.ndarray, task: Task) -> tuple[int, ...]:
    return (5 * (CIFAR_ROWS if task.padded else len(x)), *x.shape[1:])


def _open_rows(path: Path, wanted: tuple[int, ...]) -> np.ndarray:
    """Memory-map the rows of an existing file; refuse one of another shape."""
    rows = open_npy(path, "remove it or choose another output folder")
    if rows.shape != wanted:
        raise UserError(f"{path} exists with the shape {rows.shape}, not {wanted}: choose another output folder")
    return rows


def _parallel(work: Callable[[Path], T] | Callable[[str], T], items: Sequence, workers: int, what: str) -> Iterable[T]:
    """Map ``work`` over ``items`` in processes, with progress."""
    count = min(workers or os.cpu_count() or 1, len(items)) or 1
    if count == 1:
        yield from progress(map(work, items), len(items), what)
        return
    # spawn: a fork of a process that has used torch's threads can hang.
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        yield from progress(pool.map(work, items, chunksize=1), len(items), what)


def _corrupt_image_file(root: Path, out: Path, task: Task, path: Path) -> int:
    """Write the missing corruptions of one image and return how many there were."""
    file = path.relative_to(root).with_suffix(".JPEG")
    wanted = [(name, severity) for name in task.corruptions for severity in task.severities]
    goals = {(name, severity): out / name / str(severity) / file for name, severity in wanted}
    goals = {key: goal for key, goal in goals.items() if not goal.is_file()}
    if not goals:
        return 0
    clean = _read_image(path, task.size)
    for (name, severity), goal in goals.items():
        rng = image_rng(name, severity, file.as_posix(), task.seed)
        content = io.BytesIO()  # Pillow's encoder does not report a full disk as such
        corrupted = Image.fromarray(corruption(name, severity, task.strengths)(clean, rng))
        corrupted.save(content, format="JPEG", quality=_JPEG_QUALITY)
        with atomic_path(goal) as temporary:
            temporary.write_bytes(content.getbuffer())
    return len(goals)


def _corrupt_array(x: np.ndarray, out: Path, task: Task, name: str) -> None:
    """Write the severities of one corruption that its file lacks."""
    path = out / f"{name}.npy"
    rows: np.ndarray = np.zeros(_shape(x, task), dtype=np.uint8)
    if path.is_file():
        rows[:] = _open_rows(path, rows.shape)
    for severity in _absent_severities(path, x, task):
        made = corrupt_batch(x, name, severity, strengths=task.strengths, seed=task.seed)
        rows[(severity - 1) * len(rows) // 5 :][: len(x)] = made
    save_array(path, rows)


def _read_image(path: Path, size: int) -> np.ndarray:
    """Return an image as uint8 RGB, resized and cropped as ImageNet-C was (the short side to 256/224 of ``size``)."""
    image = read_rgb(path)
    if image.size == (size, size):
        return np.asarray(image)
    scale = round(size * 256 / 224) / min(image.size)
    image = image.resize((max(size, round(image.width * scale)), max(size, round(image.height * scale))))
    left, top = (image.width - size) // 2, (image.height - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size)))
