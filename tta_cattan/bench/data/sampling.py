"""Parts of a data set, drawn by a seed and by class."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from tta_cattan.bench.data.image_files import ImageList
from tta_cattan.bench.data.stream import BatchedDataset


def labels_of(dataset: Dataset) -> list[int] | None:
    """Return the labels of a data set without decoding an input, or None where it does not say.

    Note: they are a TensorDataset's second tensor, ``dataset.labels``, or the second entries of ``dataset.samples``.
    """
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[1].tolist()
    if isinstance(dataset, (Subset, BatchedPart)):
        inner = labels_of(dataset.dataset)
        return None if inner is None else [inner[index] for index in dataset.indices]
    if hasattr(dataset, "labels"):
        return [int(label) for label in dataset.labels]
    samples = getattr(dataset, "samples", None)
    return None if samples is None else [label for _, label in samples]


def take(dataset: Dataset, indices: list[int]) -> Dataset:
    """Return the samples at ``indices``; a data set in memory, of image files or read in batches stays one."""
    if isinstance(dataset, TensorDataset):
        return TensorDataset(*(tensor[indices] for tensor in dataset.tensors))
    if isinstance(dataset, ImageList):
        return ImageList([dataset.samples[index] for index in indices], dataset.transform)
    return BatchedPart(dataset, indices) if isinstance(dataset, BatchedDataset) else Subset(dataset, indices)


class BatchedPart(BatchedDataset):
    """Some samples of a data set that reads many at once."""

    def __init__(self, dataset: BatchedDataset, indices: list[int]) -> None:
        self.dataset = dataset
        self.indices = indices
        self._places = torch.tensor(indices, dtype=torch.long)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.dataset[self.indices[index]]

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels at ``indices`` of this part."""
        return self.dataset.gather(self._places[indices])


def first(dataset: TensorDataset, n: int) -> TensorDataset:
    """Return the first ``n`` samples (-1: all)."""
    return dataset if n < 0 else TensorDataset(*(tensor[:n] for tensor in dataset.tensors))


def per_class(dataset: Dataset, n: int, seed: int) -> Dataset:
    """Return at most ``n`` samples of each class (0: all), drawn by ``seed``, in their order."""
    if not n:
        return dataset
    groups = _shuffled_classes(dataset, seed)
    return take(dataset, sorted(index for group in groups for index in group[:n]))


def count_per_class(dataset: Dataset, n: int) -> int:
    """Return the number of samples that ``per_class`` returns."""
    labels = labels_of(dataset)
    counts = [len(dataset)] if labels is None else Counter(labels).values()
    return sum(min(count, n or count) for count in counts)


def balanced(dataset: Dataset, n: int, seed: int) -> Dataset:
    """Return ``n`` samples (-1: all), equally many per class, drawn by ``seed``, in their order.

    Note: the classes take turns, so their numbers differ by one at most while every class has enough.
    """
    if n < 0 or n >= len(dataset):
        return dataset
    groups = _shuffled_classes(dataset, seed)
    turns = sorted((turn, place) for place, group in enumerate(groups) for turn in range(len(group)))
    return take(dataset, sorted(groups[place][turn] for turn, place in turns[:n]))


def split_at_random(n: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Return the indices of two parts of ``n`` samples; the second has ``share`` of them, rounded, one at least."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    held = min(max(1, round(share * n)), n - 1) if share else 0
    return sorted(order[held:]), sorted(order[:held])


def _shuffled_classes(dataset: Dataset, seed: int) -> list[list[int]]:
    """Return the indices of each class, shuffled by ``seed``; one class for all where the labels are unknown."""
    labels = labels_of(dataset)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed)).tolist()
    groups: dict[int, list[int]] = {}
    for index in order:
        groups.setdefault(0 if labels is None else labels[index], []).append(index)
    return [groups[label] for label in sorted(groups)]
