"""Seeded streams of batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from tta_cattan.util.errors import UserError, raise_if_interrupted


@dataclass(frozen=True)
class Batch:
    """Inputs and labels, with the samples' indices in the data set."""

    indices: Tensor
    inputs: Tensor
    labels: Tensor


class BatchedDataset(Dataset, ABC):
    """A data set that reads many samples at once, faster than one by one."""

    @abstractmethod
    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels at ``indices``."""


def gather(dataset: TensorDataset | BatchedDataset, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs and labels at ``indices`` of data in memory or read in batches."""
    if isinstance(dataset, BatchedDataset):
        return dataset.gather(indices)
    inputs, labels = dataset.tensors
    return inputs[indices], labels[indices]


@dataclass(frozen=True)
class Stream:
    """A data set in batches, in an order determined by ``seed`` alone (``seed=None``: the order of the data set).

    With ``sequence``, exactly these samples in this order.

    Iterating again gives the same batches; ``reordered(n)`` gives the n-th other order of the same seed.
    """

    dataset: Dataset
    batch_size: int
    seed: int | None
    device: torch.device
    workers: int = 0
    order: int = 0
    kept: tuple[int, ...] | None = None
    among: tuple[int, ...] | None = None
    sequence: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self._count():
            raise UserError("the data set is empty: there is nothing to predict or adapt to")

    def __len__(self) -> int:
        return -(-self._count() // self.batch_size) if self.kept is None else len(self.kept)

    def __iter__(self) -> Iterator[Batch]:
        chunks = self._permutation().split(self.batch_size)
        if self.kept is not None:
            chunks = tuple(chunks[position] for position in self.kept)
        for indices, (inputs, labels) in zip(chunks, self._load(chunks), strict=True):
            yield Batch(indices, inputs.to(self.device, non_blocking=True), labels)

    def reordered(self, order: int) -> Stream:
        """Return the same data in another order, as for another epoch."""
        return replace(self, order=order)

    def only(self, positions: Iterable[int]) -> Stream:
        """Return a stream of only the batches at ``positions``, such as the share of one of several processes."""
        return replace(self, kept=tuple(positions))

    def restricted(self, samples: Tensor) -> Stream:
        """Return a stream of only the given samples, in this stream's order and with their indices."""
        return replace(self, among=tuple(samples.tolist()))

    def _count(self) -> int:
        if self.sequence is not None:
            return len(self.sequence)
        return len(self.dataset) if self.among is None else len(self.among)

    def _permutation(self) -> Tensor:
        """Return the samples' indices in the data set, in the order of this stream."""
        if self.sequence is not None:
            return torch.tensor(self.sequence)
        indices = torch.arange(len(self.dataset))
        if self.seed is not None or self.order > 0:
            generator = torch.Generator().manual_seed((self.seed or 0) * 1_000_003 + self.order)
            indices = torch.randperm(len(self.dataset), generator=generator)
        return indices if self.among is None else indices[torch.isin(indices, torch.tensor(self.among))]

    def _load(self, chunks: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (inputs, labels) per chunk of indices."""
        if isinstance(self.dataset, (TensorDataset, BatchedDataset)):  # no loader is needed
            return (gather(self.dataset, chunk) for chunk in chunks)
        loader = DataLoader(
            _ErrorsReturned(self.dataset),
            collate_fn=_collate,
            batch_sampler=[chunk.tolist() for chunk in chunks],
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            # The global generator belongs to the method.
            generator=torch.Generator().manual_seed(self.seed or 0),
        )
        return _checked_batches(loader)


class _ErrorsReturned(Dataset):
    """A data set that returns a UserError instead of raising it.

    Note: an exception in a worker process reaches the user as a traceback; a returned one stays one line.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except UserError as error:
            return error


def _collate(samples: list[Any]) -> Any:
    """Return a batch, the first error among its samples, or an error if their shapes differ."""
    for sample in samples:
        if isinstance(sample, UserError):
            return sample
    shapes = sorted({tuple(sample[0].shape) for sample in samples})
    if len(shapes) > 1:
        return UserError(
            f"one batch holds inputs of the shapes {shapes[0]} and {shapes[-1]}: resize the images to one shape, or "
            "set TEST.BATCH_SIZE 1"
        )
    return default_collate(samples)


def _checked_batches(loader: DataLoader) -> Iterator[Any]:
    """Yield the batches; raise an error that a worker returned, or a one-line error if a worker has died."""
    batches = iter(loader)
    try:
        try:
            for batch in batches:
                if isinstance(batch, UserError):
                    raise batch
                yield batch
        except (OSError, EOFError) as error:
            if _is_dead_worker(error, loader.num_workers):
                # Until its workers are joined, torch's signal handler may report this death again at any later line.
                batches._shutdown_workers()  # type: ignore[attr-defined]
            raise
    except (RuntimeError, OSError, EOFError) as error:
        if not _is_dead_worker(error, loader.num_workers):
            raise
        raise UserError(
            "a worker process of the data loader has died (killed, or out of memory): run the same command again with "
            "a lower TEST.NUM_WORKERS or TEST.BATCH_SIZE; finished results are kept"
        ) from error


def _is_dead_worker(error: Exception, workers: int) -> bool:
    """Return whether a worker died, as opposed to raised ("Caught OSError in DataLoader worker process 0 ...")."""
    if not workers or "Caught " in str(error):
        return False
    # Torch finds it dead, or the connection broke while it was sending a batch.
    return "DataLoader worker (pid" in str(error) or isinstance(error, (ConnectionError, EOFError, FileNotFoundError))


class Unlabelled:
    """What a method may see of a stream: (indices, inputs); lazy, and iterable repeatedly."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.stream:
            raise_if_interrupted()
            yield batch.indices, batch.inputs
