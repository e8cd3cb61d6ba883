"""The order in which a method sees the data: offline and recovery (the paper's), online (TENT's), streams."""

from tta_cattan.bench.protocols.evaluation import Evaluation
from tta_cattan.bench.protocols.offline import run_offline
from tta_cattan.bench.protocols.recovery import run_recovery
from tta_cattan.bench.protocols.stream import accuracy_without_updates, run_online, run_stream

__all__ = ["Evaluation", "accuracy_without_updates", "run_offline", "run_online", "run_recovery", "run_stream"]
