"""TENT: entropy minimisation."""

from __future__ import annotations

from torch import Tensor

from tta_cattan.losses import softmax_entropy
from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod


@ADAPTATION_REGISTRY.register()
class Tent(AdaptationMethod):
    """Minimise the entropy of the predictions."""

    title = "TENT"

    def loss(self, logits: Tensor) -> Tensor:
        """Return ``L = H(softmax(y))``, batch mean."""
        return softmax_entropy(logits)
