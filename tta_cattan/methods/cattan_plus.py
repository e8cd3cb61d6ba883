"""CATTAn+: CATTAn-F and, where there is a whole target set, updates by gradient and the target's classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tta_cattan.losses import CONFIDENCE
from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod, Batches
from tta_cattan.methods.cattan_forward import CATTAnForward, ForwardTarget
from tta_cattan.methods.target import FirstPredictions, RunningBalance
from tta_cattan.util.keys import at_least, key, one_of, within
from tta_cattan.util.state import stateful


@stateful
@dataclass
class PlusTarget(ForwardTarget):
    """Also the running mean prediction, and what the network said before its first update."""

    balance: RunningBalance = field(default_factory=RunningBalance)
    first: FirstPredictions = field(default_factory=FirstPredictions)


@ADAPTATION_REGISTRY.register("cattan_plus")
class CATTAnPlus(CATTAnForward):
    """Align by moments, as CATTAn-F; offline, also adapt the affines and find the target's classes.

    Online it is CATTAn-F, and no parameter moves: nothing can collapse. Offline ``prepare`` takes the moments of the
    whole set, and the epochs minimise ``L = lambda_lr L_lr + lambda_cb KL(m || uniform)`` with the running mean
    prediction ``m`` over the norm affines, behind the aligned moments. With ``balance_guard`` neither the loss nor the
    classes assume balance where the first predictions contradict it.
    """

    title = "CATTAn+"
    node = "CATTAN_PLUS"
    adapts = True
    lr = 1e-3
    classes = True

    lambda_lr: float = key(0.025, "weight of the confidence loss", at_least(0), origin="paper")
    lambda_cb: float = key(3.0, "weight of the class balance", at_least(0))
    confidence: str = key(
        "hlr", "'hlr' = hard likelihood ratio (paper), 'slr' = soft, 'entropy'", one_of(*CONFIDENCE), origin="paper"
    )
    kappa: float = key(
        0.9, "share of the past in the running mean prediction", within(0, 1, "[)"), origin="Mummadi et al."
    )
    balance_guard: bool = key(True, "drop the class balance where the first predictions contradict balanced classes")

    target: PlusTarget

    def new_target(self, known: Any) -> PlusTarget:
        """Return a target without a domain and without predictions."""
        return PlusTarget(known, balance=RunningBalance(self.kappa))

    @torch.no_grad()
    def prepare(self, batches: Batches) -> None:
        """Take the moments of the whole set, then the first predictions with all of them."""
        super().prepare(batches)
        for _, x in batches:
            self.target.first.add(self.infer(x, adapting=False))

    def forward_and_adapt(self, x: Tensor, indices: Tensor | None = None) -> Tensor:
        """Update once on a batch of a set that ``prepare`` has seen; in a stream be CATTAn-F."""
        if self.target.known:
            return AdaptationMethod.forward_and_adapt(self, x, indices)
        return super().forward_and_adapt(x, indices)

    def loss_calculation(self, x: Tensor, indices: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the logits of a batch and the loss; the moments stay."""
        logits = self.infer(x, adapting=False)
        return logits, self.guarded_loss(logits)

    def loss(self, logits: Tensor) -> Tensor:
        """``L = lambda_lr L_lr + lambda_cb KL(m || uniform)``, the balance where it is assumed."""
        balance = self.target.balance(logits, self.new_batch) * self.assumes_balance(logits)
        return self.lambda_lr * CONFIDENCE[self.confidence](logits) + self.lambda_cb * balance

    def assumes_balance(self, logits: Tensor | None = None) -> Tensor | bool:
        """Return whether the first predictions allow balanced classes; with ``lambda_cb`` 0 they are never assumed."""
        if not self.lambda_cb:
            return False
        return self.target.first.balanced() if self.balance_guard else True

    def describe(self) -> dict[str, Any]:
        """Add whether the classes are taken to be balanced."""
        return {**super().describe(), "balanced": bool(self.assumes_balance())}
