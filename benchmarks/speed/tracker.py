"""What tracking the target subspace adds to a batch, against a step of TENT."""

from __future__ import annotations

import sys

import torch

from benchmarks.speed.subjects import TINY, TINY_DIM, aligned, network, random_subspace
from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, interleaved
from tta_cattan.alignment import SubspaceTracker
from tta_cattan.methods.tent import Tent

GOAL = "<= 0.05"


def measure(tiny: bool = False, batch: int = 64) -> list[Line]:
    """Time one update of the tracker, the move of the alignment to the new basis included."""
    name, dim, d, size = (TINY, TINY_DIM, 8, 32) if tiny else ("resnet50", 2048, 256, 224)
    batch = 4 if tiny else batch
    torch.manual_seed(0)
    x, features = torch.rand(batch, 3, size, size), torch.randn(batch, dim)
    tent, source = Tent(network(name)), random_subspace(dim, d)
    tracker = SubspaceTracker(source, d)
    head = aligned(torch.nn.Sequential(torch.nn.BatchNorm1d(dim), torch.nn.Linear(dim, 1000)), dim, d).aligned

    def track() -> None:
        head.move_target(tracker.update(features), source.basis)

    rounds = interleaved({"TENT step": lambda: tent(x), "tracker": track}, rounds=1 if tiny else 3)
    what = f"online tracker per batch of {batch}, D = {dim}, d = {d}"
    return [rounds.line(f"{what} ({name}, {size} px)", "tracker", "TENT step", GOAL)]


if __name__ == "__main__":
    print_lines(measure(batch=int(sys.argv[1]) if len(sys.argv) > 1 else 64))
