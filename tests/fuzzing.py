"""Input drawn at random for tests/fuzz, whose properties ``benchmarks/faults/fuzz.py`` searches for hours.

Each file is read as what it says or refused in one line, and no code in it runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

from tta_cattan.util.errors import UserError

T = TypeVar("T")

FAST = settings(derandomize=True, max_examples=40, deadline=None, database=None)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats()
EXACT = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT
LEAVES = st.none() | st.booleans() | NUMBERS | TEXT
JSON = st.recursive(LEAVES, lambda of: st.lists(of, max_size=3) | st.dictionaries(TEXT, of, max_size=3), max_leaves=5)
FRACTION = st.floats(0, 1, exclude_max=True)
EDITS = st.lists(st.tuples(FRACTION, st.integers(0, 9), st.binary(max_size=9)), max_size=4)
FLOATS = st.sampled_from([0.0, 1.0, -1.0, 1e-30, 1e30, -1e30, np.nan, np.inf, 0.5])

_RUNS_CODE = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class", "socket.connect")
_watched: list[list[str]] = []


@sys.addaudithook  # there is no way to take it away
def _hook(event: str, _: object) -> None:
    if _watched and event in _RUNS_CODE:
        _watched[-1].append(event)


def taken(call: Callable[..., T], *given: Any) -> T | None:
    """Return what the call returns, or None where it refuses in one line; it must not run code or connect."""
    _watched.append([])
    try:
        return call(*given)
    except UserError as error:
        assert len(str(error).splitlines()) == 1, f"not one line: {error}"
        return None
    finally:
        assert not (ran := _watched.pop()), f"{ran} while a file was read"


def damaged(content: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    """Return the bytes with some replaced (by more, fewer or none); the last edit of no bytes cuts the rest off."""
    for place, length, new in edits:
        at = int(place * len(content))
        content = content[:at] + new + (content[at + length :] if new or length else b"")
    return content


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("FUZZ_FOLDER")) as name:
        yield Path(name)


DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def tensors(draw, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of the shape, or perhaps of another shape, dtype or with other values."""
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    if draw(st.integers(0, 3)) == 0:
        values = np.full(draw(SHAPES | st.just(shape)), draw(FLOATS | st.floats(width=32)), np.float64)
        tensor = torch.from_numpy(values).to(draw(st.sampled_from(DTYPES)))
    elif tensor.numel() and draw(st.integers(0, 3)) == 0:
        tensor.view(-1)[int(draw(FRACTION) * tensor.numel())] = draw(FLOATS)
    return tensor


def positive(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.abs() if tensor.is_floating_point() else tensor
