"""One update of the parameters, made only where everything about it is finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tta_cattan.methods.safety import in_range
from tta_cattan.util.precision import Precision


def backward(
    loss: Tensor, value: float, statistics: Sequence[Tensor], optimizer: torch.optim.Optimizer, precision: Precision
) -> str:
    """Back-propagate; return what forbids an update because it is not finite, or an empty string.

    ``value`` is the loss as a number, ``statistics`` the buffers that the forward pass has moved.
    """
    if not math.isfinite(value):
        return "loss"
    numbers = [buffer for buffer in statistics if buffer.is_floating_point()]
    if numbers and not in_range(numbers):
        return "running statistics"
    precision.backward(loss, optimizer)
    gradients = [param.grad for param in _params(optimizer) if param.grad is not None]
    if gradients and not in_range(gradients):
        precision.skip()
        return "gradient"
    return ""


def update(optimizer: torch.optim.Optimizer, precision: Precision) -> bool:
    """Move the parameters by their gradients; tell whether they are still in the range of numbers."""
    precision.step(optimizer)
    return in_range(_params(optimizer))


def _params(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]
