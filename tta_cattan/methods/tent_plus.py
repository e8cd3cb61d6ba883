"""TENT+: entropy minimisation with class balance."""

from __future__ import annotations

from torch import Tensor

from tta_cattan.losses import CLASS_BALANCE, softmax_entropy
from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod
from tta_cattan.util.keys import at_least, key, one_of


@ADAPTATION_REGISTRY.register("tent_plus")
class TentPlus(AdaptationMethod):
    """Minimise the entropy of the predictions while keeping their mean near the uniform prior."""

    title = "TENT+"
    node = "TENT_PLUS"
    lambda_cb: float = key(1.0, "weight of the class balance", at_least(0), origin="paper")
    class_balance: str = key(
        "sum", "'sum', 'mean', 'entropy' or 'running', as CATTAN.CLASS_BALANCE", one_of(*CLASS_BALANCE, "running")
    )

    def loss(self, logits: Tensor) -> Tensor:
        """Return ``L = H(softmax(y)) + lambda_cb L_CB``."""
        return softmax_entropy(logits) + self.lambda_cb * self.balance_loss(logits)
