"""Parts of a data set: balanced by class, the same for the same seed."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from tta_cattan.bench.data.datasets import balanced, labels_of, split_at_random, take
from tta_cattan.bench.data.stream import BatchedDataset

SIZES = (30, 20, 3)


def tensors() -> TensorDataset:
    labels = torch.cat([torch.full((n,), label) for label, n in enumerate(SIZES)])
    return TensorDataset(torch.arange(len(labels)).float()[:, None], labels)


class Rows(BatchedDataset):
    """Rows with their labels told, read many at once."""

    def __init__(self) -> None:
        self.data = tensors()
        self.labels = self.data.tensors[1]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int):
        return self.data[index]

    def gather(self, indices: torch.Tensor):
        return self.data[indices]


def chosen(dataset: Dataset) -> list[int]:
    return [int(dataset[i][0]) for i in range(len(dataset))]


@pytest.mark.parametrize("make", [tensors, Rows, lambda: Subset(tensors(), range(sum(SIZES)))])
def test_a_part_takes_from_the_classes_in_turn(make):
    part = balanced(make(), 12, seed=5)
    assert Counter(labels_of(part)) == {0: 5, 1: 4, 2: 3}, "equal until a class has no more"
    assert chosen(part) == sorted(chosen(part))
    assert chosen(part) == chosen(balanced(make(), 12, seed=5)) != chosen(balanced(make(), 12, seed=6))


def test_all_is_the_data_set_itself():
    data = tensors()
    assert all(balanced(data, n, seed=5) is data for n in (-1, len(data), 999))


def test_a_part_of_rows_is_read_in_batches_still():
    part = take(Rows(), [7, 3, 50])
    inputs, labels = part.gather(torch.tensor([2, 0]))
    assert inputs.flatten().tolist() == [50, 7] and labels.tolist() == [2, 0] and labels_of(part) == [0, 0, 2]


@pytest.mark.parametrize(("n", "share", "held"), [(100, 0.1, 10), (3, 0.1, 1), (2, 0.9, 1), (10, 0.0, 0)])
def test_a_split_is_of_everything_and_neither_part_is_empty(n, share, held):
    kept, out = split_at_random(n, share, seed=0)
    assert len(out) == held and sorted(kept + out) == list(range(n)) and kept
    assert (kept, out) == split_at_random(n, share, seed=0)
