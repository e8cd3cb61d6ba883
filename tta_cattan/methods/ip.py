"""IP: input transformation, likelihood ratio and diversity (Mummadi et al. 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tta_cattan.errors import UserError, chosen
from tta_cattan.losses import CONFIDENCE, divergence_from_uniform
from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod
from tta_cattan.models.input_transform import InputTransform, TransformedModel
from tta_cattan.models.normalization import affine_parameters

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from tta_cattan.subspace import Subspace


@ADAPTATION_REGISTRY.register("ip")
class IP(AdaptationMethod):
    """Adapt an input transformation and the normalisation affines; the running mean prediction is kept uniform."""

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
        self.kappa = kappa
        self.forget()

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
        like = next(model.parameters())
        return TransformedModel(InputTransform(**self._shape).to(like.device, like.dtype), model)

    def collect_params(self) -> tuple[list[nn.Parameter], list[str]]:
        """Return the affines of the model's normalisation layers and the whole transformation."""
        params, names = affine_parameters(self.model.model)
        names = [f"model.{name}" for name in names]
        for name, param in self.model.transform.named_parameters():
            params.append(param)
            names.append(f"transform.{name}")
        return params, names

    def forget(self) -> None:
        """Drop the running mean prediction."""
        self.past: Tensor | None = None  # the running mean before the present batch
        self.mean: Tensor | None = None

    def loss(self, logits: Tensor) -> Tensor:
        """``L = KL(m || uniform) + lambda_lr L_lr`` with ``m <- kappa m + (1 - kappa) mean(softmax(y))``.

        Note: the gradient flows through the present batch's share of the running mean only.
        """
        if self.new_batch:
            self.past = self.mean
        batch = logits.softmax(1).mean(0)
        mean = batch if self.past is None else self.kappa * self.past + (1 - self.kappa) * batch
        self.mean = mean.detach()
        return divergence_from_uniform(mean) + self.lambda_lr * self.confidence(logits)

    def predict_bypassed(self, x: Tensor) -> Tensor:
        """Return the logits of a batch without the input transformation; the adapted normalisation stays."""
        transform, self.model.transform = self.model.transform, nn.Identity()
        try:
            return self.predict(x)
        finally:
            self.model.transform = transform

    def fold(self) -> nn.Module:
        """Refuse: the transformation stands before the source architecture and cannot be folded into it."""
        raise UserError("IP adapts an input transformation that no source architecture has: it cannot be folded")


def image_channels(model: nn.Module) -> int:
    """Return the channels of the images that a model takes: those of its first convolution."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    if first is None:
        raise UserError(
            f"IP transforms input images, and {type(model).__name__} has no 2-d convolution: choose another method for "
            "features or point clouds"
        )
    return first.in_channels
