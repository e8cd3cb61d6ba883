"""Data sets in memory from arrays, and subsets of any data set, drawn by seed and by class."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from tta_cattan.bench.data.image_files import ImageList
from tta_cattan.bench.data.stream import BatchedDataset
from tta_cattan.util.door import checked_array, checked_labels, open_npy, parsing, regular_file
from tta_cattan.util.errors import UserError


def to_tensor(images: np.ndarray) -> Tensor:
    """Return uint8 images (N x H x W x 3) as floats in [0, 1] (N x 3 x H x W)."""
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float().div_(255).contiguous()


def read_npz(path: str | Path, names: Sequence[str]) -> list[np.ndarray]:
    """Return the named arrays of an ``.npz`` file; only these are read."""
    problem = f"{path} is not an .npz file with the arrays {', '.join(names)}"
    with parsing(problem, "get it again"), np.load(regular_file(path), allow_pickle=False) as file:
        found = [file[name] for name in names]
    return found


def check_images(path: str | Path, images: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the labels of N images; refuse anything but RGB images (uint8, N x H x W x 3) with N labels."""
    remedy = "write x (uint8, N x H x W x 3) and y (N integers) with numpy.savez"
    checked_array(f"x in {path}", images, "uint8", (None, None, None, 3), remedy=remedy)
    return checked_labels(f"y in {path}", labels, len(images), num_classes, remedy)


def load_npz(path: str | Path, num_classes: int) -> TensorDataset:
    """Return the images and labels of an ``.npz`` file with ``x`` (uint8, N x H x W x 3) and ``y``."""
    images, labels = read_npz(path, ("x", "y"))
    labels = check_images(path, images, labels, num_classes)
    return TensorDataset(to_tensor(images), torch.from_numpy(labels))


def identity_of_rows(path: Path, rows: slice, more: Sequence[str] = ()) -> str:
    """Return 12 hex digits of a hash over ``rows`` of an ``.npy`` file, their dtype and shape, and ``more``."""
    array = open_npy(path)[rows]
    digest = hashlib.sha256(f"{array.dtype};{array.shape};{';'.join(more)};".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:12]


def labels_of(dataset: Dataset) -> list[int]:
    """Return the labels of a data set without decoding an input.

    Note: they are a TensorDataset's second tensor, ``dataset.labels``, or the second entries of ``dataset.samples``.
    """
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[1].tolist()
    if isinstance(dataset, Subset):
        inner = labels_of(dataset.dataset)
        return [inner[index] for index in dataset.indices]
    if hasattr(dataset, "labels"):
        return [int(label) for label in dataset.labels]
    return [label for _, label in dataset.samples]


def take(dataset: Dataset, indices: list[int]) -> Dataset:
    """Return the samples at ``indices``; a data set in memory, of image files or read in batches keeps its kind."""
    if isinstance(dataset, TensorDataset):
        return TensorDataset(*(tensor[indices] for tensor in dataset.tensors))
    if isinstance(dataset, ImageList):
        return ImageList([dataset.samples[index] for index in indices], dataset.transform)
    return BatchedPart(dataset, indices) if isinstance(dataset, BatchedDataset) else Subset(dataset, indices)


class BatchedPart(Subset, BatchedDataset):
    """A subset of a data set that reads many samples at once."""

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.dataset.gather(torch.tensor([self.indices[place] for place in indices.tolist()]))


def check_count(asked: int, there: int, where: str) -> None:
    """Refuse a request for more images than there are; ``where`` ('FOLDER holds') is for the error message."""
    if asked > there:
        raise UserError(
            f"CORRUPTION.NUM_EX = {asked}, and {where} {there:,} images: give at most that many, or -1 for all of them"
        )


def first(dataset: TensorDataset, n: int) -> TensorDataset:
    """Return the first ``n`` samples (-1: all)."""
    return dataset if n < 0 else TensorDataset(*(tensor[:n] for tensor in dataset.tensors))


def per_class(dataset: Dataset, n: int, seed: int) -> Dataset:
    """Return at most ``n`` samples of each class (0: all), drawn by ``seed``, in the order of the data set."""
    if not n:
        return dataset
    groups = _shuffled_classes(dataset, seed)
    return take(dataset, sorted(index for group in groups for index in group[:n]))


def count_per_class(dataset: Dataset, n: int) -> int:
    """Return the number of samples that ``per_class`` returns."""
    return sum(min(count, n or count) for count in Counter(labels_of(dataset)).values())


def balanced(dataset: Dataset, n: int, seed: int) -> Dataset:
    """Return ``n`` samples (-1: all), equally many per class, drawn by ``seed``, in the order of the data set.

    Note: the classes take turns, so their counts differ by at most one as long as every class has enough.
    """
    if n < 0 or n >= len(dataset):
        return dataset
    groups = _shuffled_classes(dataset, seed)
    turns = sorted((turn, place) for place, group in enumerate(groups) for turn in range(len(group)))
    return take(dataset, sorted(groups[place][turn] for turn, place in turns[:n]))


def split_at_random(n: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Return the indices of two parts of ``n`` samples; the second has the rounded ``share``, at least 1 unless 0."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    held = min(max(1, round(share * n)), n - 1) if share else 0
    return sorted(order[held:]), sorted(order[:held])


def _shuffled_classes(dataset: Dataset, seed: int) -> list[list[int]]:
    """Return the indices of each class, shuffled by ``seed``."""
    labels = labels_of(dataset)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed)).tolist()
    groups: dict[int, list[int]] = {}
    for index in order:
        groups.setdefault(labels[index], []).append(index)
    return [groups[label] for label in sorted(groups)]
