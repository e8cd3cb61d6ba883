"""A class-balanced part of a data set."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset, Subset, TensorDataset


def per_class(dataset: Dataset, n: int, seed: int) -> Dataset:
    """Return at most ``n`` samples of each class (0: all), chosen by ``seed``, in the order they had.

    Note: the labels are those of a TensorDataset or of ``dataset.samples``, so that no image is decoded for them.
    """
    if not n:
        return dataset
    arrays = isinstance(dataset, TensorDataset)
    labels = dataset.tensors[1].tolist() if arrays else [label for _, label in dataset.samples]
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).tolist()
    taken: dict[int, int] = {}
    chosen = []
    for index in order:
        label = labels[index]
        if taken.get(label, 0) < n:
            taken[label] = taken.get(label, 0) + 1
            chosen.append(index)
    chosen.sort()
    return TensorDataset(*(tensor[chosen] for tensor in dataset.tensors)) if arrays else Subset(dataset, chosen)
