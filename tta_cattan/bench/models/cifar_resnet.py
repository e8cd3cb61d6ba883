"""He et al.'s residual networks for CIFAR (20, 32, 44, 56 layers), with parameter-free shortcuts."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions; the shortcut subsamples by 2 and pads the new channels with zeros (option A)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride, self.padding = stride, (channels - channels_in) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return ``relu(f(x) + shortcut(x))``."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(out + F.pad(shortcut, (0, 0, 0, 0, self.padding, self.padding)))


class CifarResNet(nn.Module):
    """``6n + 2`` layers in three stages of 16, 32 and 64 channels; a 64-d feature."""

    def __init__(self, depth: int, num_classes: int = 10) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._stage(16, 16, blocks, 1)
        self.layer2 = self._stage(16, 32, blocks, 2)
        self.layer3 = self._stage(32, 64, blocks, 2)
        self.linear = nn.Linear(64, num_classes)

    @staticmethod
    def _stage(channels_in: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
        rest = [BasicBlock(channels, channels, 1) for _ in range(blocks - 1)]
        return nn.Sequential(BasicBlock(channels_in, channels, stride), *rest)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of normalised images."""
        out = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(out.mean((2, 3)))
