"""An update of TENT where freed memory stays with the process, as under our commands, against glibc's defaults."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict

import torch

from benchmarks.speed.subjects import TINY, network
from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, Rounds
from tta_cattan.methods.tent import Tent
from tta_cattan.util.memory import keep_freed_memory

GOAL = "<= 1"


def measure(tiny: bool = False) -> list[Line]:
    """Time both in turn, each in processes of its own: the choice is the process's."""
    name, batch, size, steps = (TINY, 2, 32, 1) if tiny else ("resnet50", 32, 224, 3)
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(1 if tiny else 3):
        for side in ("kept", "glibc's defaults"):
            if tiny:
                seconds[side].append(one_side(side, name, batch, size, steps))
                continue
            arguments = [side, name, *map(str, (batch, size, steps))]
            command = [sys.executable, "-m", "benchmarks.speed.allocator", *arguments]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            seconds[side].append(float(done.stdout.split()[-1]))
    what = f"TENT step, {name}, batch {batch}, {size} px, freed memory kept"
    return [Rounds(seconds).line(what, "kept", "glibc's defaults", GOAL)]


def one_side(side: str, name: str, batch: int, size: int, steps: int) -> float:
    """Return the seconds of an update, the first one left out."""
    if side == "kept":
        keep_freed_memory()
    method, x = Tent(network(name)), torch.rand(batch, 3, size, size)
    method(x)
    started = time.perf_counter()
    for _ in range(steps):
        method(x)
    return (time.perf_counter() - started) / steps


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(one_side(*sys.argv[1:3], *map(int, sys.argv[3:])))
    else:
        print_lines(measure())
