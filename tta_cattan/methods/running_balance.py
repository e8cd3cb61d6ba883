"""Class balance over more than one batch: the running mean of the predictions."""

from __future__ import annotations

from torch import Tensor

from tta_cattan.losses import divergence_from_uniform
from tta_cattan.methods.arguments import checked_fraction


class RunningBalance:
    """``KL(m || uniform)`` of the running mean prediction ``m <- kappa m + (1 - kappa) mean(softmax(y))``.

    Note: the gradient flows through the present batch's share of the mean only, so that a small batch, whose own mean
    says little about the balance, moves little.
    """

    def __init__(self, kappa: float = 0.9) -> None:
        self.kappa = checked_fraction("kappa", kappa)
        self.forget()

    def forget(self) -> None:
        """Drop the mean."""
        self.past: Tensor | None = None  # the running mean before the present batch
        self.mean: Tensor | None = None

    def __call__(self, logits: Tensor, new_batch: bool) -> Tensor:
        """Take in a batch of logits, unless it is the last one again, and return the divergence."""
        if new_batch:
            self.past = self.mean
        batch = logits.softmax(1).mean(0)
        mean = batch if self.past is None else self.kappa * self.past + (1 - self.kappa) * batch
        self.mean = mean.detach()
        return divergence_from_uniform(mean)
