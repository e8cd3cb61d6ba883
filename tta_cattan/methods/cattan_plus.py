"""CATTAn+: the alignment as a correction of the source classifier, from the checkpoint alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from tta_cattan.alignment import FeatureMoments
from tta_cattan.methods.base import ADAPTATION_REGISTRY
from tta_cattan.methods.cattan import CATTAn, CATTAnTarget, Prepared
from tta_cattan.methods.target import FirstPredictions, RunningBalance
from tta_cattan.util.keys import key
from tta_cattan.util.state import stateful

DIRECTIONS = 64  # of the target subspace, where d is left open


@stateful
@dataclass
class CATTAnPlusTarget(CATTAnTarget):
    """Also what the network first said of the target."""

    first: FirstPredictions = field(default_factory=FirstPredictions)


@ADAPTATION_REGISTRY.register("cattan_plus")
class CATTAnPlus(CATTAn):
    """CATTAn with ``W_s`` the row space of the linear layer behind the features, and a residual path.

    ``y = h(z) + (z W_t) (Phi - Phi*) (W_s^T H^T)`` starts as the source classifier and loses nothing of ``z``;
    ``L = lambda_lr L_lr + lambda_align mean((W_t Phi - W_s)^2) + lambda_cb KL(m || uniform)`` with the running mean
    prediction ``m``, over the norm affines and ``Phi``. Layers of batch normalisation use statistics between the
    source's and the batch's, and offline the target's classes have a say in the end. With ``balance_guard`` neither
    assumes balanced classes where the first predictions contradict them.
    """

    title = "CATTAn+"
    node = "CATTAN_PLUS"
    lr = 1e-3
    statistics = "blend"
    classes = True
    lambda_cb = 3.0
    source_basis = "classifier"
    align_reduction = "mean"
    class_balance = "running"
    phi_lr = 0.3
    residual = True
    watches_first = True

    balance_guard: bool = key(True, "drop the class balance where the first predictions contradict balanced classes")

    target: CATTAnPlusTarget

    def inspect(self, model: nn.Module) -> None:
        """Settle d where it is open."""
        super().inspect(model)
        self._d_is_open = not self.d
        self.d = self.d or min(DIRECTIONS, self._new.in_features)

    def fitted_d(self, moments: FeatureMoments) -> int:
        """Return the number of directions to fit: fewer than asked for where d was left open and samples are few."""
        most = moments.sample_count() - (self.centering != "none")
        return min(self.d, most) if self._d_is_open and most >= 1 else self.d

    def new_target(self, known: Prepared | None) -> CATTAnPlusTarget:
        """Return a target with the first predictions that ``prepare`` saw, or none."""
        first = FirstPredictions() if known is None else known.first
        return CATTAnPlusTarget(known, balance=RunningBalance(self.kappa), first=first)

    def balance_loss(self, logits: Tensor) -> Tensor:
        """``KL(m || uniform)`` of the running mean prediction, or 0 where the classes are not balanced."""
        if self.target.known is None and self.new_batch:
            self.target.first.add(logits)
        return super().balance_loss(logits) * self.assumes_balance(logits)

    def assumes_balance(self, logits: Tensor | None = None) -> Tensor | bool:
        """Return whether the first predictions allow balanced classes; with ``lambda_cb`` 0 they are never assumed."""
        if not self.lambda_cb:
            return False
        return self.target.first.balanced() if self.balance_guard else True

    def describe(self) -> dict[str, Any]:
        """Add whether the classes are taken to be balanced."""
        return {**super().describe(), "balanced": bool(self.assumes_balance())}
