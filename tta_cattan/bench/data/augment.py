"""Random changes of a training batch, by torch's own generator, whose state a checkpoint carries."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def random_shift(images: Tensor, most: int = 2) -> Tensor:
    """Shift a batch of images by the same random number of pixels, at most ``most`` either way, edges repeated."""
    dy, dx = torch.randint(0, 2 * most + 1, (2,)).tolist()
    height, width = images.shape[-2:]
    padded = F.pad(images, [most] * 4, mode="replicate")
    return padded[..., dy : dy + height, dx : dx + width]


def random_crop_flip(images: Tensor, size: int) -> Tensor:
    """Cut a ``size`` x ``size`` part out of each image, its own at random, and mirror every other one on average."""
    height, width = images.shape[-2:]
    tops = torch.randint(0, height - size + 1, (len(images),)).tolist()
    lefts = torch.randint(0, width - size + 1, (len(images),)).tolist()
    crops = [
        image[..., top : top + size, left : left + size] for image, top, left in zip(images, tops, lefts, strict=True)
    ]
    mirrored = (torch.rand(len(images)) < 0.5).tolist()
    return torch.stack([crop.flip(-1) if flip else crop for crop, flip in zip(crops, mirrored, strict=True)])
