"""Streams: the same batches whoever loads them, and errors that stay one line."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from tta_cattan.bench.data import Stream, Unlabelled
from tta_cattan.bench.data.datasets import per_class
from tta_cattan.util.errors import UserError

CPU = torch.device("cpu")


class Rows(Dataset):
    """Rows that are made when they are asked for; ``odd`` has another shape, ``broken`` is refused."""

    def __init__(self, n: int = 13, odd: int = -1, broken: int = -1) -> None:
        self.n, self.odd, self.broken = n, odd, broken
        self.samples = [(index, index % 3) for index in range(n)]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int):
        if index == self.broken:
            raise UserError(f"row {index} is broken")
        return torch.full((2 if index == self.odd else 3,), float(index)), index % 3


def contents(stream: Stream) -> list[tuple[list[int], list[float], list[int]]]:
    return [(b.indices.tolist(), b.inputs[:, 0].tolist(), b.labels.tolist()) for b in stream]


def in_memory(n: int = 13) -> TensorDataset:
    index = torch.arange(n)
    return TensorDataset(index[:, None].float().repeat(1, 3), index % 3)


@pytest.mark.parametrize("seed", [None, 5])
def test_memory_loader_and_workers_give_the_same_batches(seed):
    expected = contents(Stream(in_memory(), 4, seed, CPU))
    assert expected == contents(Stream(Rows(), 4, seed, CPU)) == contents(Stream(Rows(), 4, seed, CPU, workers=2))
    assert sorted(i for indices, _, _ in expected for i in indices) == list(range(13))
    for indices, inputs, labels in expected:
        assert inputs == indices and labels == [i % 3 for i in indices]
    assert ([i for indices, _, _ in expected for i in indices] == list(range(13))) == (seed is None)


def test_orders_differ_by_seed_and_epoch_and_repeat():
    stream = Stream(in_memory(), 4, 5, CPU)
    orders = [contents(s) for s in (stream, stream.reordered(1), stream.reordered(2), Stream(in_memory(), 4, 6, CPU))]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])
    assert contents(stream.reordered(1)) == orders[1] and contents(stream.reordered(1).reordered(0)) == orders[0]


def test_only_takes_its_batches_and_the_shares_make_the_whole():
    for data in (in_memory(), Rows()):
        stream = Stream(data, 4, 5, CPU)
        whole = contents(stream)
        shares = [stream.only(range(rank, len(stream), 3)) for rank in range(3)]
        assert [len(share) for share in shares] == [2, 1, 1]
        assert [contents(share) for share in shares] == [whole[0::3], whole[1::3], whole[2::3]]
        assert contents(stream.only([])) == [] and len(stream.only([])) == 0


def test_unlabelled_shows_no_labels_and_can_be_read_again():
    shown = Unlabelled(Stream(in_memory(), 4, 5, CPU))
    first, again = ([(i.tolist(), x.tolist()) for i, x in shown] for _ in range(2))
    assert first == again and len(first) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_the_data_is_one_line_whoever_meets_it(workers):
    with pytest.raises(UserError) as caught:
        list(Stream(Rows(broken=7), 4, None, CPU, workers))
    assert str(caught.value) == "row 7 is broken"
    with pytest.raises(UserError) as caught:
        list(Stream(Rows(odd=2), 4, None, CPU, workers))
    assert "(2,) and (3,)" in str(caught.value) and "\n" not in str(caught.value)


def test_an_empty_data_set_is_refused():
    with pytest.raises(UserError, match="empty"):
        Stream(in_memory(0), 4, None, CPU)


def test_per_class_is_balanced_seeded_and_keeps_the_order():
    data = in_memory(30)
    chosen = per_class(data, 2, 0)
    assert torch.bincount(chosen.tensors[1]).tolist() == [2, 2, 2]
    rows = chosen.tensors[0][:, 0].tolist()
    assert rows == sorted(rows) and [int(row) % 3 for row in rows] == chosen.tensors[1].tolist()
    listed = per_class(Rows(30), 2, 0)
    assert [listed[i][0][0].item() for i in range(len(listed))] == rows, "files and arrays are chosen alike"
    assert any(per_class(data, 2, seed).tensors[0][:, 0].tolist() != rows for seed in (1, 2, 3))
    assert per_class(data, 0, 0) is data and len(per_class(data, 100, 0)) == 30


@pytest.mark.parametrize("data", [in_memory(), Rows()], ids=["in memory", "loaded"])
def test_some_samples_alone_keep_their_order_and_their_places(data):
    whole, chosen = Stream(data, 4, 3, CPU), torch.tensor([12, 1, 5, 6, 9, 2])
    part = whole.restricted(chosen)
    order = [index for indices, _, _ in contents(whole) for index in indices if index in chosen.tolist()]
    assert [index for indices, _, _ in contents(part) for index in indices] == order
    assert [len(indices) for indices, _, _ in contents(part)] == [4, 2] and len(part) == 2
    for indices, inputs, labels in contents(part):
        assert inputs == indices and labels == [index % 3 for index in indices]
    again = [index for indices, _, _ in contents(part.reordered(1)) for index in indices]
    assert again != order and sorted(again) == sorted(order)
    with pytest.raises(UserError, match="empty"):
        whole.restricted(torch.tensor([], dtype=torch.long))
