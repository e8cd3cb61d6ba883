"""The frameworks that we plug into: ``python -m tta_cattan.host SCRIPT ...``, or two calls from an edited host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from yacs.config import CfgNode

    from tta_cattan.methods import AdaptationMethod

__all__ = ["declare", "register", "setup_method"]


def declare(cfg: CfgNode) -> None:
    """Add our keys to the host's config (the line before its config is loaded)."""
    from tta_cattan.host.methods import declare as declare_in_host

    declare_in_host(cfg)


def register() -> list[str]:
    """Register our methods in a host with ``utils.registry`` (the one line after its ``import methods``)."""
    from tta_cattan.host.registry_host import register as register_in_host

    return register_in_host()


def setup_method(model: nn.Module, cfg: CfgNode) -> AdaptationMethod:
    """Set up the method that the host's ``cfg.MODEL.ADAPTATION`` names (the one branch in an if-chain)."""
    from tta_cattan.host.ifchain_host import setup

    return setup(model, cfg)
