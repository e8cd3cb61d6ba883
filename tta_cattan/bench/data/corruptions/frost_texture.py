"""Where the frost on the pane comes from: photographs that the user has, or a texture grown at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from tta_cattan.bench.data.corruptions.pixels import ByteImage, FloatImage, to_float
from tta_cattan.util.errors import UserError

_SUFFIXES = (".png", ".jpg", ".jpeg")
# Measured on 224-pixel crops of the five photographs behind ImageNet-C: their grey mean (112 to 203 of 255), the
# standard deviation within a crop (35 for the darkest, 16 to 20 for the brightest), and what tells blue from grey.
_GREY_MEAN = (0.40, 0.86)
_CONTRAST = (0.135, 0.055)
_TINT = np.array([-0.065, 0.005, 0.060])


def load_textures(folder: str | Path) -> list[ByteImage]:
    """Read the pictures of a folder, in the order of their names, as frost textures."""
    paths = sorted(path for path in Path(folder).glob("*") if path.suffix.lower() in _SUFFIXES)
    if not paths:
        raise UserError(f"frost textures {str(folder)!r}: no {', '.join(_SUFFIXES)} file there; name another folder")
    textures = []
    for path in paths:
        with Image.open(path) as picture:
            textures.append(np.asarray(picture.convert("RGB")))
    return textures


def crop_texture(
    textures: Sequence[ByteImage], shape: tuple[int, int], scale: float, rng: np.random.Generator
) -> FloatImage:
    """Return a random crop of a random texture, shrunk by ``scale`` to ``shape``.

    A texture that is too small is enlarged just enough.
    """
    texture = textures[int(rng.integers(len(textures)))]
    wanted = np.array([math.ceil(side / scale) for side in shape])
    crop = np.floor(wanted * min(1.0, *(np.array(texture.shape[:2]) / wanted))).astype(int)
    top, left = (rng.integers(0, room + 1) for room in texture.shape[:2] - crop)
    picture = Image.fromarray(texture[top : top + crop[0], left : left + crop[1]])
    # Sampling without smoothing is what the published 32-pixel benchmark did to its photographs.
    return to_float(np.asarray(picture.resize(shape[::-1], Image.Resampling.NEAREST)))


def grow_texture(shape: tuple[int, int], scale: float, rng: np.random.Generator) -> FloatImage:
    """Return a bluish-white texture of needles in three directions 60 degrees apart, as ice crystals grow.

    The brightest of three fields of needles wins, and clouds lie over them; `_ice_power` has their spectra. Mean,
    contrast and tint are drawn anew for each texture, as the photographs differ.
    """
    power = _ice_power(shape, scale, rng.uniform(0, np.pi))
    waves = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((4, *shape))) * np.sqrt(power), s=shape)
    needles = _standardise((waves[:3] / waves[:3].std(axis=(1, 2), keepdims=True)).max(axis=0))
    ice = _standardise(needles + 0.6 * _standardise(waves[3]))

    brightness = rng.uniform()
    mean = np.interp(brightness, (0, 1), _GREY_MEAN)
    contrast = np.interp(brightness, (0, 1), _CONTRAST)
    tint = _TINT * rng.exponential()
    return np.clip((mean + contrast * ice)[..., None] + tint, 0, 1)


def _ice_power(shape: tuple[int, int], scale: float, angle: float) -> FloatImage:
    """Return the power spectra of the needles across three directions (``f ** -2.4``) and of the clouds (``f ** -4``).

    Note: the photographs are shrunk by sampling, so all the frequencies that fall on one another add up.
    """
    aliases = np.arange(-math.floor(0.5 / scale), math.floor(0.5 / scale) + 1)
    fy = scale * (np.fft.fftfreq(shape[0])[:, None] + aliases[:, None, None, None])
    fx = scale * (np.fft.rfftfreq(shape[1])[None, :] + aliases[None, :, None, None])
    frequency = np.hypot(fy, fx)
    # No power at frequency 0: the mean of the texture is drawn, not grown.
    frequency[frequency == 0] = np.inf
    # Needles are thin: their spectrum is flat below one cycle per 56 pixels of a photograph.
    length = np.maximum(frequency, 1 / 56) ** -2.4
    direction = np.arctan2(fy, fx)
    needles = [
        (length * np.exp(24 * (np.cos(2 * (direction - angle - turn)) - 1))).sum(axis=(0, 1))
        for turn in (0, np.pi / 3, 2 * np.pi / 3)
    ]
    return np.stack([*needles, (frequency**-4.0).sum(axis=(0, 1))])


def _standardise(plane: FloatImage) -> FloatImage:
    """Return ``plane`` shifted and scaled to mean 0 and standard deviation 1."""
    return (plane - plane.mean()) / plane.std()
