"""The adaptation methods, one file each on a common base class; importing this package registers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod, Batches
from tta_cattan.methods.target import Target
from tta_cattan.util.errors import UserError

# Registered in the order of the paper's tables, which also sets the order of rows and colours in ours.
# isort: off
from tta_cattan.methods.source import Source
from tta_cattan.methods.norm import Norm
from tta_cattan.methods.tent import Tent
from tta_cattan.methods.tent_plus import TentPlus
from tta_cattan.methods.shot import Shot
from tta_cattan.methods.ip import IP
from tta_cattan.methods.cattan import CATTAn
from tta_cattan.methods.cattan_forward import CATTAnForward
from tta_cattan.methods.cattan_plus import CATTAnPlus
# isort: on

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from tta_cattan.alignment import SourceMoments, Subspace


def setup_model(
    model: nn.Module,
    cfg: CfgNode,
    num_classes: int | None = None,
    source_subspace: Subspace | SourceMoments | None = None,
) -> AdaptationMethod:
    """Wrap ``model`` in the method that ``cfg.MODEL.ADAPTATION`` names: ``outputs = model(x)`` predicts and adapts.

    ``num_classes`` helps to find the classifier of a model with several linear layers. ``source_subspace`` is for
    CATTAn (by default, the one that ``CATTAN.SOURCE_BASIS`` names); CATTAn-F takes the source's moments here.
    """
    try:
        name = cfg.MODEL.ADAPTATION
    except AttributeError as error:
        raise UserError(
            f"cfg is a {type(cfg).__name__} without MODEL.ADAPTATION: give a config, such as "
            "load_cfg(file, ['MODEL.ADAPTATION', 'cattan'])"
        ) from error
    return ADAPTATION_REGISTRY.get(name).from_cfg(model, cfg, num_classes, source_subspace)


def method_title(name: str) -> str:
    """Return a method's display name, as in papers; a name without one is returned unchanged."""
    return (ADAPTATION_REGISTRY.get(name).title if name in ADAPTATION_REGISTRY else "") or name
