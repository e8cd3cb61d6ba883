"""The order in which a method sees the data: offline (the paper's) and online (TENT's)."""

from tta_cattan.protocols.evaluation import Evaluation
from tta_cattan.protocols.offline import run_offline
from tta_cattan.protocols.online import run_online

__all__ = ["Evaluation", "run_offline", "run_online"]
