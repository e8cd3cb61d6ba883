"""What is done to a network's input: the mirror image, and the learnt transformation of IP (Mummadi et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tta_cattan.network.normalization import affine_parameters, require_module
from tta_cattan.util.errors import UserError


def with_mirror_images(x: Tensor) -> Tensor:
    """Return a batch of images followed by their mirror images, left and right exchanged."""
    if x.ndim != 4:
        raise UserError(
            f"MIRROR mirrors images of shape (batch, channels, height, width), and these have shape {tuple(x.shape)}: "
            "set MIRROR False (mirror=False) for features and point clouds"
        )
    return torch.cat([x, x.flip(-1)])


def mean_prediction(logits: Tensor) -> Tensor:
    """``log((softmax(y_i) + softmax(y_{n+i})) / 2)`` of 2n rows of logits: the mean prediction, as n rows of logits."""
    first, second = logits.log_softmax(1).chunk(2)
    return torch.logaddexp(first, second) - math.log(2)


class InputTransform(nn.Module):
    """``d(x) = gamma (tau x + (1 - tau) r(x)) + beta``, the identity at the start (tau = 1, gamma = 1, beta = 0).

    ``r`` is ``depth`` times 3x3 convolution, GroupNorm, ReLU, then a 3x3 convolution back to the input's channels.
    """

    def __init__(self, channels: int = 3, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(depth):
            layers += [nn.Conv2d(width if i else channels, width, 3, padding=1), nn.GroupNorm(1, width), nn.ReLU()]
        self.residual = nn.Sequential(*layers, nn.Conv2d(width, channels, 3, padding=1))
        self.tau = nn.Parameter(torch.ones(()))
        self.gamma = nn.Parameter(torch.ones(channels, 1, 1))
        self.beta = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the transformed images."""
        if x.ndim != 4 or x.shape[1] != len(self.gamma):
            raise UserError(
                f"IP transforms images of shape (batch, {len(self.gamma)}, height, width), and these have shape "
                f"{tuple(x.shape)}: choose another method for features or point clouds"
            )
        return self.gamma * (self.tau * x + (1 - self.tau) * self.residual(x)) + self.beta


class TransformedModel(nn.Module):
    """A model behind an input transformation."""

    def __init__(self, transform: InputTransform, model: nn.Module) -> None:
        super().__init__()
        self.transform = transform
        self.model = model
        self.enabled = True

    @classmethod
    def of(cls, model: nn.Module, channels: int, width: int, depth: int) -> TransformedModel:
        """Return ``model`` behind a new transformation, the identity at first, on its device and in its precision."""
        like = next(model.parameters())
        return cls(InputTransform(channels, width, depth).to(like.device, like.dtype), model)

    def forward(self, x: Tensor) -> Tensor:
        """Return the model's output for the transformed input."""
        return self.model(self.transform(x) if self.enabled else x)

    @contextmanager
    def bypassed(self) -> Iterator[None]:
        """Leave the transformation out for a while."""
        enabled, self.enabled = self.enabled, False
        try:
            yield
        finally:
            self.enabled = enabled


def transformed_parameters(model: TransformedModel) -> tuple[list[nn.Parameter], list[str]]:
    """Return the affines of the model's normalisation layers and the whole transformation, with their names."""
    params, names = affine_parameters(model.model)
    transform = dict(model.transform.named_parameters())
    return (
        [*params, *transform.values()],
        [*(f"model.{name}" for name in names), *(f"transform.{name}" for name in transform)],
    )


def image_channels(model: nn.Module) -> int:
    """Return the channels of the images that a model takes: those of its first convolution."""
    require_module(model)
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    if first is None:
        raise UserError(
            f"IP transforms input images, and {type(model).__name__} has no 2-d convolution: choose another method for "
            "features or point clouds"
        )
    return first.in_channels
