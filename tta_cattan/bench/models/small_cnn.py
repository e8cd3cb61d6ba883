"""A small convolutional network for 28x28 grey images."""

from __future__ import annotations

from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Two 5x5 convolutions with batch normalisation and pooling, a 1,024-d feature, a linear classifier."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 5, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(),
        )  # fmt: skip
        self.fc = nn.Linear(1024, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images in [0, 1]."""
        return self.fc(self.features(x))
