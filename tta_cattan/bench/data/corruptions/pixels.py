"""Images as arrays: floats in [0, 1] inside this package, 8-bit at its door."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatImage: TypeAlias = NDArray[np.float64]
ByteImage: TypeAlias = NDArray[np.uint8]


def to_float(image: ByteImage) -> FloatImage:
    """Return ``image / 255`` in double precision, always a new array."""
    return image / np.float64(255)


def to_bytes(image: FloatImage) -> ByteImage:
    """Return ``floor(255 clip(image, 0, 1))``: the benchmarks were stored by truncation, not by rounding."""
    # Without the margin the last bit of a sum decides whether a flat 128 is stored as 128 or as 127.
    return np.floor(np.clip(image, 0, 1) * 255 + 1e-6).astype(np.uint8)


def luma(image: FloatImage) -> FloatImage:
    """Return the grey value ``0.299 R + 0.587 G + 0.114 B`` of each pixel."""
    return image @ np.array([0.299, 0.587, 0.114])
