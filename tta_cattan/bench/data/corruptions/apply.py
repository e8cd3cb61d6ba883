"""Corrupting images by a corruption's name and severity, at the strengths of the published benchmarks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

import numpy as np

from tta_cattan.bench.data.corruptions import functions
from tta_cattan.bench.data.corruptions.filters import ByteImage, FloatImage, to_bytes, to_float
from tta_cattan.bench.data.corruptions.strengths import STRENGTHS, Strength, TableName
from tta_cattan.util.errors import UserError, nearest
from tta_cattan.util.registry import Registry

COMMON = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
CORRUPTIONS: Registry[Callable[..., FloatImage]] = Registry("corruption")
for _name in COMMON + EXTRA:
    CORRUPTIONS.register(_name)(getattr(functions, _name))

SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST_SIDE = 16


def corrupt(
    image: ByteImage,
    name: str,
    severity: int,
    *,
    rng: np.random.Generator,
    strengths: TableName,
    frost_textures: Sequence[ByteImage] | None = None,
) -> ByteImage:
    """Return a corrupted copy of one 8-bit RGB image (height, width, 3).

    ``frost_textures`` (see `load_textures`) replace the grown texture of ``frost``; other corruptions ignore them.
    """
    _check_images(image, ndim=3)
    return _function_of(name, severity, strengths, frost_textures)(image, rng)


def corrupt_batch(
    images: ByteImage,
    name: str,
    severity: int,
    *,
    strengths: TableName,
    seed: int = 0,
    keys: Sequence[str | int] | None = None,
    frost_textures: Sequence[ByteImage] | None = None,
) -> ByteImage:
    """Return corrupted copies of 8-bit RGB images (N, height, width, 3), each with the `image_rng` of its key.

    ``keys`` (default: 0 to N - 1) identify the images, so that one image is corrupted alike in any batch.
    """
    _check_images(images, ndim=4)
    if keys is None:
        keys = range(len(images))
    if len(keys) != len(images):
        raise UserError(f"keys: {len(keys)} of them for {len(images)} images; give one key per image, or none at all")
    function = _function_of(name, severity, strengths, frost_textures)
    corrupted = np.empty_like(images)
    for index, key in enumerate(keys):
        corrupted[index] = function(images[index], image_rng(name, severity, key, seed))
    return corrupted


def image_rng(name: str, severity: int, key: str | int, seed: int = 0) -> np.random.Generator:
    """Return the random generator of one image: a function of the arguments only, not of order or processes."""
    identity = json.dumps([name.lower(), int(severity), str(key), int(seed)])
    digest = hashlib.sha256(identity.encode()).digest()
    return np.random.default_rng(np.random.SeedSequence(int.from_bytes(digest, "big")))


def _function_of(
    name: str, severity: int, strengths: TableName, frost_textures: Sequence[ByteImage] | None
) -> Callable[[ByteImage, np.random.Generator], ByteImage]:
    """Return the corruption of 8-bit images that the arguments name, its strength filled in."""
    function = CORRUPTIONS.get(name)
    strength = _strength_of(name, severity, strengths)
    options = {"textures": frost_textures} if function is functions.frost else {}
    return lambda image, rng: to_bytes(function(to_float(image), rng, *strength, **options))


def _strength_of(name: str, severity: int, strengths: TableName) -> Strength:
    """Return the arguments of the corruption at this severity."""
    if strengths not in STRENGTHS:
        raise UserError(
            f"unknown strength table {strengths!r}.{nearest(str(strengths), STRENGTHS)} Valid: {', '.join(STRENGTHS)}"
        )
    if not isinstance(severity, int | np.integer) or severity not in SEVERITIES:
        raise UserError(f"severity {severity!r} of corruption {name!r}: choose one of 1, 2, 3, 4, 5")
    return STRENGTHS[strengths][name.lower()][severity - 1]


def _check_images(images: ByteImage, ndim: int) -> None:
    """Refuse what is not an array of 8-bit RGB images, channels last."""
    wanted = "(height, width, 3)" if ndim == 3 else "(N, height, width, 3)"
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        given = images.dtype if isinstance(images, np.ndarray) else type(images).__name__
        raise UserError(f"images of type {given}: corruptions take numpy arrays of uint8; convert them from 0..255")
    if images.ndim != ndim or images.shape[-1] != 3:
        raise UserError(f"images of shape {images.shape}: corruptions take {wanted}; move the channels last")
    if min(images.shape[-3:-1]) < SMALLEST_SIDE:
        raise UserError(
            f"images of shape {images.shape}: corruptions take sides of at least {SMALLEST_SIDE} pixels; enlarge them"
        )
