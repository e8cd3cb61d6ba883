"""A small residual network for 32x32 images, quick on a CPU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation around a shortcut (1x1 where the shape changes)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``relu(f(x) + shortcut(x))``."""
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class SmallResNet(nn.Module):
    """Strided stem, one residual block per width (each halves the resolution), global average, linear classifier."""

    def __init__(self, num_classes: int = 10, widths: tuple[int, ...] = (8, 32, 64), channels: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, widths[0], 3, 2, 1, bias=False)
        self.bn = nn.BatchNorm2d(widths[0])
        pairs = zip((widths[0], *widths), widths, strict=False)
        self.blocks = nn.Sequential(*(ResidualBlock(i, o, 2) for i, o in pairs))
        self.fc = nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images in [0, 1]."""
        features = self.blocks(F.relu(self.bn(self.conv(x)))).mean((2, 3))
        return self.fc(features)
