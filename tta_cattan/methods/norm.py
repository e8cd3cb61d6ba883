"""Norm: test-time normalisation."""

from __future__ import annotations

from torch import nn

from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod


@ADAPTATION_REGISTRY.register()
class Norm(AdaptationMethod):
    """The source model with the statistics of each test batch, or blended ones, and no parameter updates."""

    title = "Norm"
    adapts = False

    def inspect(self, model: nn.Module) -> None:
        """Use batch statistics unless blended ones are asked for: without updates, the other modes would be Source."""
        super().inspect(model)
        if self.statistics != "blend":
            self.statistics = "batch"
