"""Time and memory of a cell are its own."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from tta_cattan.bench.run.cell import COST_METRICS, Meter

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


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system cannot forget the highest mark")
def test_memory_that_is_kept_for_speed_is_not_counted_again():
    code = f"""
import numpy as np, torch
from tta_cattan.util.memory import keep_freed_memory
from tta_cattan.bench.run.cell import Meter
keep_freed_memory()
first = Meter(torch.device("cpu"))
np.ones({BYTES} // 8)
print(int(first.metrics(1)["peak_memory"]), int(Meter(torch.device("cpu")).metrics(1)["peak_memory"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert second < first - 0.5 * BYTES
