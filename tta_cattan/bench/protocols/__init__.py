"""The order in which a method sees the data: offline and recovery (the paper's), online (TENT's), streams."""

from tta_cattan.bench.protocols.evaluation import Evaluation
from tta_cattan.bench.protocols.one_domain import run_offline, run_online
from tta_cattan.bench.protocols.recovery import run_recovery
from tta_cattan.bench.protocols.stream import accuracy_without_updates, run_stream
