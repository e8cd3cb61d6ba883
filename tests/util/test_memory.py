"""What is said when memory runs out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tta_cattan.util.errors import UserError, is_out_of_memory, machine_memory, memory_line

GIB = 1 << 30


@pytest.mark.parametrize(
    ("allocate", "size"),
    [
        (lambda: np.zeros((10**11, 307, 10**4), np.uint8), "PiB"),
        (lambda: torch.nn.Linear(10**6, 10**9), "bytes"),
    ],
)
def test_what_no_machine_has_is_not_blamed_on_the_batch(allocate, size):
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        allocate()
    assert is_out_of_memory(caught.value)
    line = memory_line(caught.value, machine_memory() or 64 * GIB)
    assert size in line and "BATCH_SIZE" not in line and "shapes of the data" in line and len(line.splitlines()) == 1


def test_what_would_fit_is_a_matter_of_the_batch():
    error = MemoryError("Unable to allocate 2. GiB for an array with shape (1,)")
    for machine in (4 * GIB, None):
        assert memory_line(error, machine).endswith("lower TEST.BATCH_SIZE; what is finished is kept")
    assert "BATCH_SIZE" not in memory_line(error, GIB)
    assert memory_line(MemoryError(), GIB).startswith("out of memory: lower")


def test_other_errors_are_others():
    assert not any(map(is_out_of_memory, (RuntimeError("shape"), UserError("can't allocate memory"), ValueError())))
