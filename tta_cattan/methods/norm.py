"""Norm: test-time normalisation."""

from __future__ import annotations

from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod


@ADAPTATION_REGISTRY.register()
class Norm(AdaptationMethod):
    """The source model with the statistics of each test batch; no parameter is updated."""

    adapts = False
