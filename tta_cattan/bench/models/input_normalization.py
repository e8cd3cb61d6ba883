"""Input normalisation inside the model, so that every model takes images in [0, 1]."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normalize(nn.Module):
    """``(x - mean) / std`` per channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        # Not persistent: a checkpoint of the bare model stays one.
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised images."""
        return (x - self.mean) / self.std


def with_normalization(model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> nn.Sequential:
    """Return ``Sequential(normalise, model)``, the form that RobustBench's models have."""
    return nn.Sequential(OrderedDict(normalize=Normalize(mean, std), model=model))


def inner_network(model: nn.Module) -> nn.Module:
    """Return the network inside ``Sequential(normalize, model)``: checkpoints are of the bare network."""
    return model.model if isinstance(model, nn.Sequential) and hasattr(model, "normalize") else model
