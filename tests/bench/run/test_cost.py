"""Time and memory of a cell are its own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from digits_runs import start

from tta_cattan.bench.run.cell import COST_METRICS, Meter
from tta_cattan.util.memory import keep_freed_memory

CPU = torch.device("cpu")
BYTES = 200_000_000


def test_images_per_second_are_images_over_seconds():
    cost = Meter(CPU).metrics(images=60)
    assert set(cost) == set(COST_METRICS)
    assert cost["images_per_second"] == pytest.approx(60 / cost["seconds"])


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system cannot forget the highest mark")
def test_the_peak_is_that_of_the_cell_and_not_of_an_earlier_one():
    first = Meter(CPU)
    before = first.metrics(1)["peak_memory"]
    block = np.ones(BYTES // 8)  # written to, and so resident
    during = first.metrics(1)["peak_memory"]
    del block
    assert during > before + 0.9 * BYTES
    assert first.metrics(1)["peak_memory"] > before + 0.9 * BYTES, "a peak stays one when the memory is free again"
    assert Meter(CPU).metrics(1)["peak_memory"] < during - 0.5 * BYTES


def write_peaks(path: Path) -> None:
    """Write the peaks of a cell with much memory and of one after it, where freed memory is kept."""
    keep_freed_memory()
    first = Meter(CPU)
    np.ones(BYTES // 8)
    path.write_text(f"{first.metrics(1)['peak_memory']:.0f} {Meter(CPU).metrics(1)['peak_memory']:.0f}")


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system cannot forget the highest mark")
def test_memory_that_is_kept_for_speed_is_not_counted_again(tmp_path):
    process = start(write_peaks, tmp_path / "peaks")
    process.join()
    first, second = map(int, (tmp_path / "peaks").read_text().split())
    assert second < first - 0.5 * BYTES
