"""The adaptation methods, one file each over one base class; importing this package registers them."""

from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod, Batches, Target
from tta_cattan.methods.setup import method_title, setup_model

# Registered in the order of the paper's tables, which is the order of rows and colours in ours.
# isort: off
from tta_cattan.methods.source import Source
from tta_cattan.methods.norm import Norm
from tta_cattan.methods.tent import Tent
from tta_cattan.methods.tent_plus import TentPlus
from tta_cattan.methods.shot import Shot
from tta_cattan.methods.ip import IP
from tta_cattan.methods.cattan import CATTAn
from tta_cattan.methods.cattan_plus import CATTAnPlus
# isort: on

__all__ = [
    "ADAPTATION_REGISTRY",
    "IP",
    "AdaptationMethod",
    "Batches",
    "CATTAn",
    "CATTAnPlus",
    "Norm",
    "Shot",
    "Source",
    "Target",
    "Tent",
    "TentPlus",
    "method_title",
    "setup_model",
]
