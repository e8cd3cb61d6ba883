"""What the monitor adds to a batch, against a step of TENT."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from benchmarks.speed.subjects import TINY, TINY_DIM, network
from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, interleaved
from tta_cattan.methods.tent import Tent
from tta_cattan.monitor import Calibration, Monitor, Reference

GOAL = "<= 0.01"


def measure(tiny: bool = False, batch: int = 64) -> list[Line]:
    """Time one observation, both networks' estimates of accuracy included, with a full window."""
    name, dim, classes, size = (TINY, TINY_DIM, 10, 32) if tiny else ("resnet50", 2048, 1000, 224)
    batch = 4 if tiny else batch
    torch.manual_seed(0)
    x, features, logits = torch.rand(batch, 3, size, size), torch.randn(batch, dim), torch.randn(batch, classes)
    tent = Tent(network(name, classes))
    calibration = Calibration.of([(torch.randn(1000, classes), torch.arange(1000) % classes)])
    # As with many clean samples, which make the estimate dearer.
    calibration = replace(calibration, prior=torch.full((classes,), 1 / classes))
    monitor = Monitor(Reference.of(torch.randn(1000, dim), calibration))
    for _ in range(-(-2 * monitor.window // batch)):
        monitor.observe(logits, features, logits)
    sides = {"TENT step": lambda: tent(x), "monitor": lambda: monitor.observe(logits, features, logits)}
    rounds = interleaved(sides, rounds=1 if tiny else 3)
    what = f"monitor per batch of {batch}, D = {dim}, d = {monitor.reference.subspace.d}, {classes} classes"
    return [rounds.line(f"{what} ({name}, {size} px)", "monitor", "TENT step", GOAL)]


if __name__ == "__main__":
    print_lines(measure(batch=int(sys.argv[1]) if len(sys.argv) > 1 else 64))
