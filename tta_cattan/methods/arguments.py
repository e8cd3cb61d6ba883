"""Whether what a caller hands to a method is what a method takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from tta_cattan.methods.optim import OptimizerFactory


def checked_steps(steps: int) -> int:
    """Return the number of updates per batch if it is one."""
    if not isinstance(steps, int) or steps < 1:
        raise UserError(f"steps = {steps!r}: a method needs at least 1 update per batch, a whole number")
    return steps


def checked_fraction(name: str, value: float) -> float:
    """Return a number in [0, 1]."""
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise UserError(f"{name} = {value!r}: must be a number from 0 to 1")
    return value


def checked_scale(name: str, value: float) -> float:
    """Return a positive number."""
    if not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise UserError(f"{name} = {value!r}: must be a positive number")
    return value


def checked_batch(x: Tensor) -> Tensor:
    """Return a batch if it is a tensor with samples in it."""
    if not isinstance(x, Tensor):
        raise UserError(f"a batch is a {type(x).__name__}: give a torch.Tensor, samples first (see torch.as_tensor)")
    if len(x) == 0:
        raise UserError("an empty batch was given: there is nothing to predict or to adapt to")
    return x


def built_optimizer(make: OptimizerFactory, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimiser that a factory makes for the parameters."""
    made: Any = make(params) if callable(make) else make
    if made is make or not isinstance(made, torch.optim.Optimizer):
        raise UserError(
            f"optimizer = {type(make).__name__} {str(make)[:60]!r}: give a function from parameters to a torch "
            "optimiser, such as functools.partial(torch.optim.SGD, lr=1e-3)"
        )
    return made
