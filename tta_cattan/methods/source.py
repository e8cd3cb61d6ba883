"""Source: the model without adaptation."""

from __future__ import annotations

from torch import nn

from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod


@ADAPTATION_REGISTRY.register()
class Source(AdaptationMethod):
    """The source model with its own statistics, unchanged."""

    title = "Source"
    adapts = False

    def inspect(self, model: nn.Module) -> None:
        """Use the source's statistics, whatever the option says."""
        super().inspect(model)
        self.statistics = "source"
