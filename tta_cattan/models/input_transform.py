"""The input transformation of IP (Mummadi et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tta_cattan.errors import UserError


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

    def forward(self, x: Tensor) -> Tensor:
        """Return the model's output for the transformed input."""
        return self.model(self.transform(x))
