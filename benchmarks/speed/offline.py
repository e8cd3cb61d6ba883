"""Offline CATTAn from end to end against offline TENT: the pass for the target features is in it."""

from __future__ import annotations

import torch

from benchmarks.speed.subjects import TINY, TINY_DIM, job_in_memory, network, random_subspace
from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, interleaved
from tta_cattan.bench.run.cell import run_cell

GOAL = "<= 1.15"


def measure(tiny: bool = False) -> list[Line]:
    """Time whole cells of five epochs."""
    name, dim, n, size, d, epochs = (TINY, TINY_DIM, 32, 32, 8, 1) if tiny else ("resnet18", 512, 320, 64, 256, 5)
    torch.manual_seed(0)
    images, model = torch.rand(n, 3, size, size), network(name, 10)
    subspaces = {"tent": None, "cattan": random_subspace(dim, d)}
    sides = {}
    for method, subspace in subspaces.items():
        options = ("MODEL.ADAPTATION", method, "TEST.PROTOCOL", "offline", "TEST.EPOCHS", epochs, "CATTAN.D", d)
        job, setting = job_in_memory(model, images, subspace, *options, "TEST.BATCH_SIZE", 16 if tiny else 64)
        sides[method] = lambda job=job, setting=setting: run_cell(job, setting)
    rounds = interleaved(sides, rounds=1 if tiny else 2)
    what = f"offline CATTAn, {epochs} epochs, {name}, {n} images of {size} px, d = {d}"
    return [rounds.line(what, "cattan", "tent", GOAL)]


if __name__ == "__main__":
    print_lines(measure())
