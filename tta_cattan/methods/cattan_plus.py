"""CATTAn+: CATTAn-F and, where there is a whole target set, the target's classes."""

from __future__ import annotations

from tta_cattan.methods.base import ADAPTATION_REGISTRY
from tta_cattan.methods.cattan_forward import CATTAnForward


@ADAPTATION_REGISTRY.register("cattan_plus")
class CATTAnPlus(CATTAnForward):
    """The source's moments at every BatchNorm and, offline, a say for the target's classes: the parts that pay.

    No parameter is updated. Gradients on top of the aligned moments lost accuracy on corruptions (docs/study.md), and
    what is never updated cannot collapse. In a stream it is CATTAn-F.
    """

    title = "CATTAn+"
    node = "CATTAN_PLUS"
    classes = True
