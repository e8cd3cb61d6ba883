"""TENT+: entropy minimisation with class balance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tta_cattan.losses import CLASS_BALANCE, softmax_entropy
from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod
from tta_cattan.util.errors import chosen

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from tta_cattan.alignment import Subspace


@ADAPTATION_REGISTRY.register("tent_plus")
class TentPlus(AdaptationMethod):
    """Minimise the entropy of the predictions while their mean stays near the uniform prior."""

    title = "TENT+"
    config_node = "TENT_PLUS"

    def __init__(self, model: nn.Module, *, lambda_cb: float = 1.0, class_balance: str = "bce", **options: Any) -> None:
        super().__init__(model, **options)
        self.lambda_cb = lambda_cb
        self.class_balance = CLASS_BALANCE[chosen("class_balance", class_balance, CLASS_BALANCE)]

    @classmethod
    def options_from_cfg(
        cls, cfg: CfgNode, num_classes: int | None, source_subspace: Subspace | None
    ) -> dict[str, Any]:
        return {"lambda_cb": cfg.TENT_PLUS.LAMBDA_CB, "class_balance": cfg.TENT_PLUS.CLASS_BALANCE}

    def loss(self, logits: Tensor) -> Tensor:
        """``L = H(softmax(y)) + lambda_cb L_CB``."""
        return softmax_entropy(logits) + self.lambda_cb * self.class_balance(logits)
