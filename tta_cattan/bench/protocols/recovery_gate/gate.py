"""The gate: an adapted model that steps back for samples of the source domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tta_cattan.bench.protocols.recovery_gate.agreement import agreement
from tta_cattan.methods import AdaptationMethod
from tta_cattan.util.errors import UserError, chosen

FALLBACKS = ("bypass", "source")


@runtime_checkable
class Bypassable(Protocol):
    """A method that put something into the network, as CATTAn and IP do, and can predict without it."""

    def predict_bypassed(self, x: Tensor) -> Tensor:
        """Return the logits of a batch without it; the adapted normalisation stays."""


class SourceRecovery(nn.Module):
    """Hypotheses of one method on one target domain; a sample about which they disagree is taken as source data.

    ``forward(x)`` gives the first hypothesis' logits where ``qbar >= tau`` and the fall-back's elsewhere, sample by
    sample: ``bypass`` (the paper's) leaves out what the method put into the network and keeps the adapted
    normalisation, ``source`` is the untouched source model. A method that put nothing there falls back to the source
    model either way.

    Note: a bypassed sample is normalised as its whole batch is. With ``statistics="batch"`` those are the statistics of
    all samples in the batch, source and target, also where one sample alone is gated: the gate chooses between the
    logits of two passes over the same batch, so nobody's logits depend on who else was gated. The fall-back ``source``
    uses the source model's running statistics and does not depend on the batch at all.
    """

    def __init__(
        self, hypotheses: Sequence[AdaptationMethod], source: nn.Module, tau: float = 0.75, fallback: str = "bypass"
    ) -> None:
        super().__init__()
        if len(hypotheses) < 2:
            raise UserError(f"source recovery compares hypotheses, and {len(hypotheses)} is given: adapt at least 2")
        self.hypotheses = nn.ModuleList(hypotheses)
        self.source = source.eval().requires_grad_(False)
        self.tau = tau
        self.fallback = chosen("fallback", fallback, FALLBACKS)

    @torch.no_grad()
    def opinions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first hypothesis' logits and the agreement ``qbar`` of all, for a batch."""
        logits = [hypothesis.predict(x) for hypothesis in self.hypotheses]
        return logits[0], agreement(torch.stack(logits).softmax(2))

    @torch.no_grad()
    def fall_back(self, x: Tensor, fallback: str) -> Tensor:
        """Return the logits that a gated sample of the batch gets."""
        first = self.hypotheses[0]
        if fallback == "bypass" and isinstance(first, Bypassable):
            return first.predict_bypassed(x)
        return self.source(x).float()

    def forward(self, x: Tensor) -> Tensor:
        """Return the gated logits of a batch."""
        logits, qbar = self.opinions(x)
        gated = qbar < self.tau
        if not gated.any():
            return logits
        return torch.where(gated[:, None], self.fall_back(x, self.fallback), logits)

    def train(self, mode: bool = True) -> SourceRecovery:
        """Set the mode of the wrapper only: the models' modes belong to the methods."""
        self.training = mode
        return self
