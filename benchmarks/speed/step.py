"""A step of CATTAn, and one of CATTAn+ offline, against a step of TENT: the same model, the same batch."""

from __future__ import annotations

import copy
import sys

import torch

from benchmarks.speed.subjects import TINY, TINY_DIM, aligned, learning, network
from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, interleaved
from tta_cattan.methods.tent import Tent

GOAL, GOAL_PLUS = "<= 1.03", "<= 1.15"


def measure(tiny: bool = False, batch: int = 64) -> list[Line]:
    """Time whole updates: forward, loss, backward, optimiser; the smaller the batch, the more Phi weighs."""
    name, dim, dimensions = (TINY, TINY_DIM, (8, 16)) if tiny else ("resnet50", 2048, (256, 800))
    x = torch.rand(2, 3, 32, 32) if tiny else torch.rand(batch, 3, 224, 224)
    model = network(name)
    tent = Tent(copy.deepcopy(model))
    sides = {"TENT step": lambda: tent(x)}
    for d in dimensions:
        cattan = aligned(copy.deepcopy(model), dim, d)
        sides[f"d = {d}"] = lambda cattan=cattan: cattan(x)
    plus = learning(copy.deepcopy(model), x)
    sides["CATTAn+"] = lambda: plus(x)
    rounds = interleaved(sides, rounds=1 if tiny else 5)
    what = f"step, {name}, batch {len(x)}, {x.shape[-1]} px"
    lines = [rounds.line(f"CATTAn {what}, d = {d}", f"d = {d}", "TENT step", GOAL) for d in dimensions]
    return [*lines, rounds.line(f"CATTAn+ {what}, offline", "CATTAn+", "TENT step", GOAL_PLUS)]


if __name__ == "__main__":
    print_lines(measure(batch=int(sys.argv[1]) if len(sys.argv) > 1 else 64))
