"""CATTAn+: CATTAn-F and, where there is a whole target set, the target's classes."""

from __future__ import annotations

from tta_cattan.methods.base import ADAPTATION_REGISTRY
from tta_cattan.methods.cattan_forward import CATTAnForward


@ADAPTATION_REGISTRY.register("cattan_plus")
class CATTAnPlus(CATTAnForward):
    """CATTAn-F; offline, predictions also use the target's classes.

    No parameter is updated: gradients on top of the aligned moments lost accuracy on corruptions (docs/study.md).
    """

    title = "CATTAn+"
    node = "CATTAN_PLUS"
    classes = True
