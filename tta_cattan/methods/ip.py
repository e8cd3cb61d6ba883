"""IP: input transformation, likelihood ratio and diversity (Mummadi et al. 2021)."""

from __future__ import annotations

from torch import Tensor, nn

from tta_cattan.losses import CONFIDENCE
from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod
from tta_cattan.network.inputs import TransformedModel, image_channels, transformed_parameters
from tta_cattan.util.keys import at_least, key, one_of, within


@ADAPTATION_REGISTRY.register("ip")
class IP(AdaptationMethod):
    """Adapt an input transformation and the normalisation affines; the running mean prediction is kept uniform."""

    title = "IP"
    node = "IP"
    needs_images = True
    lambda_lr: float = key(0.025, "weight of the likelihood ratio", at_least(0), origin="Mummadi et al.")
    confidence: str = key(
        "hlr", "'hlr' = hard likelihood ratio, 'slr' = soft", one_of("hlr", "slr"), origin="Mummadi et al."
    )
    kappa: float = key(
        0.9, "share of the past in the running mean prediction", within(0, 1, "[)"), origin="Mummadi et al."
    )
    width: int = key(16, "channels of the input transformation", within(1, 1024))
    depth: int = key(2, "convolutions of the input transformation", within(1, 64))

    def inspect(self, model: nn.Module) -> None:
        """Find the channels of the images that the model takes."""
        self._channels = image_channels(model)
        super().inspect(model)

    def configure_model(self, model: nn.Module) -> nn.Module:
        """Put the input transformation, the identity at first, before the configured model."""
        return TransformedModel.of(super().configure_model(model), self._channels, self.width, self.depth)

    @property
    def network(self) -> nn.Module:
        """The network behind the transformation."""
        return self.model.model

    def collect_params(self) -> tuple[list[nn.Parameter], list[str]]:
        """Return the affines of the model's normalisation layers and the whole transformation."""
        return transformed_parameters(self.model)

    def loss(self, logits: Tensor) -> Tensor:
        """``L = KL(m || uniform) + lambda_lr L_lr`` with the running mean prediction ``m``."""
        balance = self.target.balance(logits, self.kappa, self.new_batch)
        return balance + self.lambda_lr * CONFIDENCE[self.confidence](logits)

    def predict_bypassed(self, x: Tensor) -> Tensor:
        """Return the logits of a batch without the input transformation; the adapted normalisation stays."""
        with self.model.bypassed():
            return self.predict(x)

    @property
    def unfoldable(self) -> str:
        """The transformation stands before the source architecture and cannot be folded into it."""
        return "it adapts an input transformation that no source architecture has; tent and cattan can be folded"
