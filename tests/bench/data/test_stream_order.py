"""The order of a stream: decided by its seed alone, whatever loads it."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset, TensorDataset

from tta_cattan.bench.data.stream import Stream, Unlabelled

CPU = torch.device("cpu")


class Squares(Dataset):
    """A data set that only gives one item at a time."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return torch.tensor([index, index**2], dtype=torch.float32), index % 4


def contents(stream):
    return [(b.indices.tolist(), b.inputs.tolist(), b.labels.tolist()) for b in stream]


def test_workers_do_not_change_the_order():
    alone, shared = Stream(Squares(), 5, 3, CPU), Stream(Squares(), 5, 3, CPU, workers=2)
    assert contents(alone) == contents(shared) == contents(shared)
    for indices, inputs, labels in contents(shared):
        assert inputs == [[i, i**2] for i in indices]
        assert labels == [i % 4 for i in indices]


def test_in_memory_data_comes_in_the_same_order():
    items = [Squares()[i] for i in range(23)]
    memory = TensorDataset(torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items]))
    assert contents(Stream(memory, 5, 3, CPU)) == contents(Stream(Squares(), 5, 3, CPU))


def order(seed, n=0):
    return [place for b in Stream(Squares(), 5, seed, CPU).reordered(n) for place in b.indices.tolist()]


def test_the_seed_and_the_number_of_the_order_decide():
    assert order(1) == order(1) != order(2)
    assert order(1, 1) == order(1, 1) != order(1)
    assert len({tuple(order(seed, n)) for seed in range(4) for n in range(6)}) == 24
    assert all(sorted(order(seed)) == list(range(23)) for seed in (None, 0, 2**32 - 1))


def test_without_a_seed_the_order_is_that_of_the_data_set():
    assert order(None) == list(range(23))
    assert order(None, 1) != list(range(23)), "the epochs of the offline protocol are shuffled all the same"


def test_the_order_does_not_touch_the_global_generator():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    contents(Stream(TensorDataset(torch.zeros(9, 2), torch.zeros(9)), 5, 3, CPU))
    assert torch.equal(torch.rand(1), expected)


def test_the_last_batch_is_what_is_left():
    stream = Stream(Squares(), 11, 0, CPU)
    assert [len(b.indices) for b in stream] == [11, 11, 1] and len(stream) == 3


def test_a_method_sees_no_labels():
    stream = Stream(Squares(), 5, 3, CPU)
    unlabelled = Unlabelled(stream)
    for _ in range(2):
        for (indices, inputs), batch in zip(unlabelled, stream, strict=True):
            assert torch.equal(indices, batch.indices) and torch.equal(inputs, batch.inputs)
