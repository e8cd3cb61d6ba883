"""Source: the model as it came."""

from __future__ import annotations

from torch import nn

from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod


@ADAPTATION_REGISTRY.register()
class Source(AdaptationMethod):
    """No adaptation: the source model with its own statistics."""

    title = "Source"
    adapts = False

    def inspect(self, model: nn.Module) -> None:
        """Use the source's statistics whatever is asked for."""
        super().inspect(model)
        self.statistics = "source"
