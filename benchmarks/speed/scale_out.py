"""Cells per minute of two Ray workers against one."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import torch

from benchmarks.speed.subjects import TINY, job_in_memory, network
from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line
from tta_cattan.bench.run.cell import one_by_one
from tta_cattan.bench.run.launchers import RayLauncher
from tta_cattan.bench.run.runner import Launcher

GOAL = ">= 1.7"


def cells_per_minute(workers: int, name: str, cells: int, images: int, launcher: Launcher) -> float:
    """Return the pace of the cells that come after every worker has finished its first, which pays for its start."""
    torch.manual_seed(0)
    options = ("MODEL.ADAPTATION", "tent", "TEST.BATCH_SIZE", 64)
    job, setting = job_in_memory(network(name, 10), torch.rand(images, 3, 32, 32), None, *options)
    work = [replace(job, cell=replace(job.cell, seed=seed)) for seed in range(cells)]
    finished = []
    for _ in launcher(work, {job.cell.label: setting}):
        finished.append(time.perf_counter())
    paid = 2 * workers - 1
    return 60 * (len(finished) - 1 - paid) / (finished[-1] - finished[paid])


def measure(tiny: bool = False) -> list[Line]:
    """Run the same cells with one and with two workers, in turn."""
    name, cells, images = (TINY, 6, 4) if tiny else ("resnet18", 24, 384)
    paces: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(1 if tiny else 3):
        for workers, found in paces.items():
            launcher = one_by_one if tiny else RayLauncher(workers=workers)  # starting Ray would take most of the time
            found.append(cells_per_minute(workers, name, cells, images, launcher))
    one, two = (statistics.median(values) for values in paces.values())
    ratio = statistics.median(b / a for a, b in zip(*paces.values(), strict=True))
    what = f"Ray, two workers, {cells} cells of TENT, {name}, {images} images of 32 px"
    return [Line(what, "one worker", f"{two:.1f} cells/min", f"{one:.1f} cells/min", ratio, GOAL)]


if __name__ == "__main__":
    print_lines(measure())
