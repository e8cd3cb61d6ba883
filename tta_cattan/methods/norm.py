"""Norm: test-time normalisation."""

from __future__ import annotations

from typing import Any

from torch import nn

from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod


@ADAPTATION_REGISTRY.register()
class Norm(AdaptationMethod):
    """The source model with the statistics of each test batch, or blended ones; no parameter is updated."""

    title = "Norm"
    adapts = False

    def __init__(self, model: nn.Module, **options: Any) -> None:
        # Without updates nothing would move the running statistics: the other modes would be Source again.
        statistics = "blend" if options.get("statistics") == "blend" else "batch"
        super().__init__(model, **{**options, "statistics": statistics})
