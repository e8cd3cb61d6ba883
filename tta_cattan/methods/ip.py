"""IP: input transformation, likelihood ratio and diversity (Mummadi et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tta_cattan.losses import CONFIDENCE
from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod
from tta_cattan.network.normalization import affine_parameters
from tta_cattan.util.errors import UserError
from tta_cattan.util.keys import at_least, key, one_of, within


class InputTransform(nn.Module):
    """``d(x) = gamma (tau x + (1 - tau) r(x)) + beta``, the identity at the start (tau = 1, gamma = 1, beta = 0).

    ``r`` is ``depth`` blocks of 3x3 convolution, GroupNorm, ReLU, then a 3x3 convolution back to the input's channels.
    """

    def __init__(self, channels: int = 3, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(depth):
            layers += [nn.Conv2d(width if i else channels, width, 3, padding=1), nn.GroupNorm(1, width), nn.ReLU()]
        self.residual = nn.Sequential(*layers, nn.Conv2d(width, channels, 3, padding=1))
        self.tau = nn.Parameter(torch.ones(()))
        self.gamma = nn.Parameter(torch.ones(channels, 1, 1))
        self.beta = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the transformed images."""
        if x.ndim != 4 or x.shape[1] != len(self.gamma):
            raise UserError(
                f"IP transforms images of shape (batch, {len(self.gamma)}, height, width), and these have shape "
                f"{tuple(x.shape)}: give one image as x[None], and choose another method for features or point clouds"
            )
        return self.gamma * (self.tau * x + (1 - self.tau) * self.residual(x)) + self.beta


class TransformedModel(nn.Module):
    """A model behind an input transformation."""

    def __init__(self, transform: InputTransform, model: nn.Module) -> None:
        super().__init__()
        self.transform, self.model = transform, model
        self.enabled = True

    def forward(self, x: Tensor) -> Tensor:
        """Return the model's output for the transformed input."""
        return self.model(self.transform(x) if self.enabled else x)


@ADAPTATION_REGISTRY.register("ip")
class IP(AdaptationMethod):
    """Adapt an input transformation and the affines, while the running mean prediction is pulled towards uniform."""

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
        """Take the number of image channels from the model's first convolution."""
        super().inspect(model)
        first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
        if first is None:
            raise UserError(
                f"IP transforms input images, and {type(model).__name__} has no 2-d convolution: choose another method "
                "for features or point clouds"
            )
        self._channels = first.in_channels

    def configure_model(self, model: nn.Module) -> nn.Module:
        """Put the input transformation, initially the identity, in front of the configured model."""
        like = next(model.parameters())
        transform = InputTransform(self._channels, self.width, self.depth).to(like.device, like.dtype)
        return TransformedModel(transform, super().configure_model(model))

    @property
    def network(self) -> nn.Module:
        """The network behind the transformation."""
        return self.model.model

    def collect_params(self) -> tuple[list[nn.Parameter], list[str]]:
        """Return the affines of the model's normalisation layers and the whole transformation."""
        params, names = affine_parameters(self.network)
        transform = dict(self.model.transform.named_parameters(prefix="transform"))
        return [*params, *transform.values()], [*(f"model.{name}" for name in names), *transform]

    def loss(self, logits: Tensor) -> Tensor:
        """Return ``L = KL(m || uniform) + lambda_lr L_lr`` with the running mean prediction ``m``."""
        balance = self.target.balance(logits, self.new_batch, self.kappa)
        return balance + self.lambda_lr * CONFIDENCE[self.confidence](logits)

    def predict_bypassed(self, x: Tensor) -> Tensor:
        """Return the logits of a batch without the input transformation but with the adapted normalisation."""
        self.model.enabled = False
        try:
            return self.predict(x)
        finally:
            self.model.enabled = True

    @property
    def unfoldable(self) -> str:
        """Why ``fold`` fails: the input transformation is not part of the source architecture."""
        return "it adapts an input transformation that no source architecture has; tent and cattan can be folded"
