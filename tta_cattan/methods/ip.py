"""IP: input transformation, likelihood ratio and diversity (Mummadi et al. 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tta_cattan.losses import CONFIDENCE
from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod
from tta_cattan.methods.running_balance import RunningBalance
from tta_cattan.network.input_transform import TransformedModel, image_channels, transformed_parameters
from tta_cattan.util.errors import UserError, chosen

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from tta_cattan.alignment import Subspace


@ADAPTATION_REGISTRY.register("ip")
class IP(AdaptationMethod):
    """Adapt an input transformation and the normalisation affines; the running mean prediction is kept uniform."""

    title = "IP"
    needs_images = True
    config_node = "IP"

    def __init__(
        self,
        model: nn.Module,
        *,
        lambda_lr: float = 0.025,
        confidence: str = "hlr",
        kappa: float = 0.9,
        width: int = 16,
        depth: int = 2,
        **options: Any,
    ) -> None:
        self._shape = {"channels": image_channels(model), "width": width, "depth": depth}
        super().__init__(model, **options)
        self.lambda_lr = lambda_lr
        self.confidence = CONFIDENCE[chosen("confidence", confidence, CONFIDENCE)]
        self.balance = RunningBalance(kappa)

    @classmethod
    def options_from_cfg(
        cls, cfg: CfgNode, num_classes: int | None, source_subspace: Subspace | None
    ) -> dict[str, Any]:
        return {
            "lambda_lr": cfg.IP.LAMBDA_LR,
            "confidence": cfg.IP.CONFIDENCE,
            "kappa": cfg.IP.KAPPA,
            "width": cfg.IP.WIDTH,
            "depth": cfg.IP.DEPTH,
        }

    def configure_model(self, model: nn.Module) -> nn.Module:
        """Put the input transformation, the identity at first, before the configured model."""
        model = super().configure_model(model)
        return TransformedModel.of(model, **self._shape)

    def collect_params(self) -> tuple[list[nn.Parameter], list[str]]:
        """Return the affines of the model's normalisation layers and the whole transformation."""
        return transformed_parameters(self.model)

    def forget(self) -> None:
        """Drop the running mean prediction."""
        self.balance.forget()

    def loss(self, logits: Tensor) -> Tensor:
        """``L = KL(m || uniform) + lambda_lr L_lr`` with the running mean prediction ``m``."""
        return self.balance(logits, self.new_batch) + self.lambda_lr * self.confidence(logits)

    def predict_bypassed(self, x: Tensor) -> Tensor:
        """Return the logits of a batch without the input transformation; the adapted normalisation stays."""
        with self.model.bypassed():
            return self.predict(x)

    def fold(self) -> nn.Module:
        """Refuse: the transformation stands before the source architecture and cannot be folded into it."""
        raise UserError("IP adapts an input transformation that no source architecture has: it cannot be folded")
