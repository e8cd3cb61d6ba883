"""The 15 common corruptions of ImageNet-C and CIFAR-10-C, and the 4 extra ones, at severities 1 to 5.

Written from the definitions of the operations, with numpy, scipy and pillow; the strengths are those of the published
benchmarks. The random draws are our own, so the images have the same distribution as the published ones but are not
the same images. Note: ImageNet-C was stored as JPEG files of quality 85 afterwards, which only `make` does here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import numpy as np

from tta_cattan.bench.data.corruptions import functions
from tta_cattan.bench.data.corruptions.functions import ByteImage, to_bytes, to_float
from tta_cattan.bench.data.corruptions.strengths import STRENGTHS, TableName
from tta_cattan.config import CORRUPTIONS as COMMON
from tta_cattan.util.door import checked_array
from tta_cattan.util.errors import UserError, chosen

EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST_SIDE = 16


def corrupt_batch(images: ByteImage, name: str, severity: int, *, strengths: TableName, seed: int = 0) -> ByteImage:
    """Return corrupted copies of 8-bit RGB images (N, height, width, 3), the i-th with the `image_rng` of i."""
    remedy = f"corruptions take uint8 images of sides from {SMALLEST_SIDE} pixels on, channels last"
    checked_array("images", images, "uint8", (None, None, None, 3), remedy=remedy)
    if min(images.shape[1:3]) < SMALLEST_SIDE:
        raise UserError(f"images of shape {images.shape}: {remedy}")
    function = corruption(name, severity, strengths)
    corrupted = np.empty_like(images)
    for index, image in enumerate(images):
        corrupted[index] = function(image, image_rng(name, severity, index, seed))
    return corrupted


def corruption(name: str, severity: int, strengths: TableName) -> Callable[[ByteImage, np.random.Generator], ByteImage]:
    """Return a corruption at a severity, as a function of an 8-bit RGB image (height, width, 3) and a generator."""
    function = getattr(functions, chosen("corruption", name, (*COMMON, *EXTRA)))
    chosen("severity", str(severity), tuple(map(str, SEVERITIES)))
    strength = STRENGTHS[strengths][name][severity - 1]
    return lambda image, rng: to_bytes(function(to_float(image), rng, *strength))


def image_rng(name: str, severity: int, key: str | int, seed: int = 0) -> np.random.Generator:
    """Return the random generator of one image: a function of the arguments only, not of order or processes."""
    identity = json.dumps([name, severity, str(key), seed])
    digest = hashlib.sha256(identity.encode()).digest()
    return np.random.default_rng(np.random.SeedSequence(int.from_bytes(digest, "big")))
