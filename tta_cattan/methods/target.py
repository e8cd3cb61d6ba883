"""The state that a method keeps per target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tta_cattan.alignment import TargetClasses
from tta_cattan.losses import divergence_from_uniform
from tta_cattan.network.normalization import StreamStatistics
from tta_cattan.util.state import stateful

_PER_CLASS = 10  # samples per class that the running mean prediction covers


@stateful
class RunningBalance:
    """``KL(m || uniform)`` of the running mean prediction ``m <- kappa m + (1 - kappa) mean(softmax(y))``.

    Unless ``kappa`` is given, ``m`` covers about ten samples per class: ``1 - kappa = min(1, n / (10 K))`` for a batch
    of n samples and K classes.

    Note: the gradient flows only through the current batch's share of the mean, so a batch that is small beside the
    number of classes, whose own mean says little about the class balance, has little effect.
    """

    def __init__(self) -> None:
        self.past: Tensor | None = None  # the running mean before the current batch; None: uniform
        self.mean: Tensor | None = None

    def __call__(self, logits: Tensor, new_batch: bool, kappa: float | None = None) -> Tensor:
        """Add a batch of logits, in place of the last one unless ``new_batch``, and return the divergence."""
        if new_batch:
            self.past = self.mean
        n, classes = logits.shape
        share = min(1.0, n / (_PER_CLASS * classes)) if kappa is None else 1 - kappa
        batch = logits.softmax(1).mean(0)
        # Not from the first batch itself: its gradient would be 1 / share times that of the others.
        past = torch.full_like(batch, 1 / classes) if self.past is None else self.past
        mean = (1 - share) * past + share * batch
        self.mean = mean.detach()
        return divergence_from_uniform(mean)


@stateful
@dataclass
class Target:
    """What a method has learnt about the current target; methods that learn more use a subclass."""

    known: Any = None  # learnt from the whole target set (offline protocol)
    calibration: StreamStatistics = field(default_factory=StreamStatistics)
    balance: RunningBalance = field(default_factory=RunningBalance)
    classes: TargetClasses | None = None  # found after the last epoch
    changed: float | None = None  # fraction of the source model's predictions that adaptation changed
