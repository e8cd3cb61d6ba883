"""What a method knows of a target: the running mean prediction, and whether its first predictions are balanced."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tta_cattan.losses import divergence_from_uniform
from tta_cattan.network.normalization import StreamStatistics
from tta_cattan.util.state import stateful

OVERCONFIDENCE = 1.5  # errors per error that a network expects to make; 1.4 to 1.7 on shifted data, docs/study.md


def balanced_limit(doubt: Tensor, n: int, classes: int) -> Tensor:
    """Return ``1.5 doubt + sqrt((C - 1) / (2 pi n))``: how far balanced classes' predictions may lie from balance.

    The parts that a network predicts differ from the true ones by no more than its errors (total variation). It
    expects ``doubt = 1 - mean(max softmax(y))`` of them, and makes more. And n samples of C equal classes are
    themselves so far from balance, on average and for n not too small.

    Note: a mean, no bound: a network that is sure of everything may be found unbalanced by chance. It has no use for
    the balance either.
    """
    return OVERCONFIDENCE * doubt + math.sqrt((classes - 1) / (2 * math.pi * n))


@stateful
@dataclass
class Target:
    """What a method has learnt of the present target; ``known`` is what it learnt before the first update."""

    known: Any = None
    calibration: StreamStatistics = field(default_factory=StreamStatistics, kw_only=True)


@stateful
class RunningBalance:
    """``KL(m || uniform)`` of the running mean prediction ``m <- kappa m + (1 - kappa) mean(softmax(y))``.

    Note: the gradient flows through the present batch's share of the mean only, so that a small batch, whose own mean
    says little about the balance, moves little.
    """

    def __init__(self, kappa: float = 0.9) -> None:
        self.kappa = kappa
        self.past: Tensor | None = None  # the running mean before the present batch; None: uniform
        self.mean: Tensor | None = None

    def __call__(self, logits: Tensor, new_batch: bool) -> Tensor:
        """Take in a batch of logits, unless it is the last one again, and return the divergence."""
        if new_batch:
            self.past = self.mean
        batch = logits.softmax(1).mean(0)
        # Not from the first batch itself, whose gradient would be 1 / (1 - kappa) times that of the others.
        past = torch.full_like(batch, 1 / len(batch)) if self.past is None else self.past
        mean = self.kappa * past + (1 - self.kappa) * batch
        self.mean = mean.detach()
        return divergence_from_uniform(mean)


@stateful
@dataclass
class BalancedTarget(Target):
    """A target with its running mean prediction."""

    balance: RunningBalance = field(default_factory=RunningBalance)


@stateful
class FirstPredictions:
    """Whether predictions, the first ones of a target, are consistent with balanced classes."""

    def __init__(self) -> None:
        self.count = 0
        self.total: Tensor | None = None  # of the predicted parts, and of the largest of each sample

    @torch.no_grad()
    def add(self, logits: Tensor) -> None:
        """Take in a batch; what is not finite has no say."""
        parts = logits[logits.isfinite().all(1)].softmax(1)
        total = torch.cat([parts, parts.amax(1, keepdim=True)], 1).sum(0)
        self.count += len(parts)
        self.total = total if self.total is None else self.total + total

    def balanced(self) -> Tensor | bool:
        """Return whether ``1/2 sum |m - 1/C|`` of the mean prediction is within ``balanced_limit``."""
        if self.total is None or not self.count:
            return True
        mean, confidence = (self.total / self.count).tensor_split([-1])
        deviation = 0.5 * (mean - 1 / len(mean)).abs().sum()
        return deviation <= balanced_limit(1 - confidence[0], self.count, len(mean))
