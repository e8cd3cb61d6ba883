"""The folded model against the source model: the same architecture, so the same time."""

from __future__ import annotations

import copy

import torch

from benchmarks.speed.subjects import TINY, TINY_DIM, aligned, network
from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, interleaved

GOAL = "<= 1.01"  # 1.00 to two digits


def measure(tiny: bool = False) -> list[Line]:
    """Time inference; the folded model must also have the source's parameters, shape by shape."""
    name, dim, d = (TINY, TINY_DIM, 8) if tiny else ("resnet50", 2048, 800)
    x = torch.rand(2, 3, 32, 32) if tiny else torch.rand(8, 3, 224, 224)
    source = network(name).requires_grad_(False)
    folded = aligned(copy.deepcopy(source), dim, d, statistics="source").fold()
    shapes = [{key: value.shape for key, value in model.state_dict().items()} for model in (source, folded)]
    assert shapes[0] == shapes[1], "the folded model has another architecture"
    twin = copy.deepcopy(source)  # what two equal models differ by is what the machine adds
    sides = {"folded": folded, "source model": source, "copy": twin}
    with torch.inference_mode():
        rounds = interleaved(
            {label: lambda model=model: model(x) for label, model in sides.items()}, rounds=1 if tiny else 15
        )
    what = f"{name}, batch {len(x)}, {x.shape[-1]} px"
    return [
        rounds.line(f"folded model, inference, {what}", "folded", "source model", GOAL),
        rounds.line(f"for comparison: a copy of the source model, {what}", "copy", "source model"),
    ]


if __name__ == "__main__":
    print_lines(measure())
