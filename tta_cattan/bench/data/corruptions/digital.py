"""Corruptions that a program makes: colour, geometry and compression."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image
from scipy import ndimage

from tta_cattan.bench.data.corruptions.filters import gaussian
from tta_cattan.bench.data.corruptions.pixels import FloatImage, to_bytes, to_float


def brightness(image: FloatImage, _rng: np.random.Generator, shift: float) -> FloatImage:
    """Raise the value V of HSV by ``shift``: ``x V' / V`` with ``V = max(R, G, B)``, ``V' = min(V + shift, 1)``."""
    value = image.max(axis=-1, keepdims=True)
    raised = np.minimum(value + shift, 1)
    black = value == 0
    return np.where(black, raised, image * (raised / np.where(black, 1, value)))


def saturate(image: FloatImage, _rng: np.random.Generator, gain: float, shift: float) -> FloatImage:
    """Change the saturation S of HSV to ``clip(gain S + shift, 0, 1)``: ``V - (V - x) S' / S``.

    Note: greys have no hue to strengthen; they count as red, as they do in HSV with its hue of 0.
    """
    value = image.max(axis=-1, keepdims=True)
    chroma = value - image.min(axis=-1, keepdims=True)
    grey = chroma == 0
    saturation = chroma / np.where(value == 0, 1, value)
    wanted = np.clip(gain * saturation + shift, 0, 1)
    hue_profile = np.where(grey, np.array([0.0, 1.0, 1.0]), (value - image) / np.where(grey, 1, chroma))
    return value * (1 - wanted * hue_profile)


def contrast(image: FloatImage, _rng: np.random.Generator, gain: float) -> FloatImage:
    """Pull each channel towards its mean: ``m + gain (x - m)``."""
    mean = image.mean(axis=(0, 1))
    return mean + gain * (image - mean)


def elastic_transform(
    image: FloatImage, rng: np.random.Generator, amplitude: float, smoothness: float, corner_shift: float
) -> FloatImage:
    """Skew by a random affine map, then move each pixel along a smooth random field.

    The map takes three corners of a centred square to places up to ``corner_shift`` pixels away; the field is uniform
    noise in [-1, 1], smoothed with a Gaussian of ``smoothness`` pixels and multiplied by ``amplitude``.
    """
    size = np.array(image.shape[:2])
    grid = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij")).astype(np.float64)

    centre, arm = size // 2, size.min() // 3
    corners = centre + arm * np.array([[1, 1], [-1, 1], [-1, -1]])
    moved = corners + rng.uniform(-corner_shift, corner_shift, size=(3, 2))
    # Each output pixel looks up where it came from, so we solve for the map from the moved corners to the old ones.
    back = np.linalg.solve(np.column_stack([moved, np.ones(3)]), corners)
    skewed = _sample(image, np.tensordot(back[:2].T, grid, axes=1) + back[2][:, None, None], mode="mirror")

    noise = rng.uniform(-1, 1, size=(*size, 2))
    field = amplitude * gaussian(noise, smoothness, mode="reflect", truncate=3.0)
    return _sample(skewed, grid + field.transpose(2, 0, 1), mode="reflect")


def _sample(image: FloatImage, position: FloatImage, mode: str) -> FloatImage:
    """Read ``image`` at the ``(2, height, width)`` positions (row, column), linearly interpolated."""
    channels = [ndimage.map_coordinates(channel, position, order=1, mode=mode) for channel in image.transpose(2, 0, 1)]
    return np.stack(channels, axis=-1)


def pixelate(image: FloatImage, _rng: np.random.Generator, factor: float) -> FloatImage:
    """Shrink by ``factor`` and enlarge again, both with a box filter."""
    picture = Image.fromarray(to_bytes(image))
    small = picture.resize((int(picture.width * factor), int(picture.height * factor)), Image.Resampling.BOX)
    return to_float(np.asarray(small.resize(picture.size, Image.Resampling.BOX)))


def jpeg_compression(image: FloatImage, _rng: np.random.Generator, quality: int) -> FloatImage:
    """Write and read the picture as a JPEG of ``quality``."""
    file = BytesIO()
    Image.fromarray(to_bytes(image)).save(file, "JPEG", quality=quality)
    return to_float(np.asarray(Image.open(file)))
