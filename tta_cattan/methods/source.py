"""Source: the model as it came."""

from __future__ import annotations

from typing import Any

from torch import nn

from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod


@ADAPTATION_REGISTRY.register()
class Source(AdaptationMethod):
    """No adaptation: the source model with its own statistics."""

    title = "Source"
    adapts = False

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **{**options, "statistics": "source"})
