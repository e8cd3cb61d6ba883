"""The source network over features of a frozen encoder."""

from __future__ import annotations

from torch import Tensor, nn


class FeatureMLP(nn.Module):
    """One linear layer with batch normalisation and ReLU, then a linear classifier."""

    def __init__(self, num_classes: int, in_features: int = 768, width: int = 512) -> None:
        super().__init__()
        self.in_features = in_features
        # No bias: batch normalisation takes it away.
        self.layer = nn.Sequential(nn.Linear(in_features, width, bias=False), nn.BatchNorm1d(width), nn.ReLU())
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of feature vectors (n x in_features)."""
        return self.fc(self.layer(x))
