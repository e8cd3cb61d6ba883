"""Images and their mirror images: a batch of both, and the mean of their predictions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tta_cattan.util.errors import UserError


def with_mirror_images(x: Tensor) -> Tensor:
    """Return a batch of images followed by their left-right mirror images."""
    if x.ndim != 4:
        raise UserError(
            f"MIRROR mirrors images of shape (batch, channels, height, width), and these have shape {tuple(x.shape)}: "
            "give one image as x[None], and set MIRROR False (mirror=False) for features and point clouds"
        )
    return torch.cat([x, x.flip(-1)])


def mean_prediction(logits: Tensor) -> Tensor:
    """Return ``log((softmax(y_i) + softmax(y_{n+i})) / 2)`` of 2n rows of logits: n rows of mean predictions."""
    first, second = logits.log_softmax(1).chunk(2)
    return torch.logaddexp(first, second) - math.log(2)
