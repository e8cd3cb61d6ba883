"""The online protocol, TENT's."""

from __future__ import annotations

from collections.abc import Callable

from tta_cattan.bench.data.stream import Stream
from tta_cattan.bench.protocols.evaluation import Evaluation
from tta_cattan.methods.base import AdaptationMethod


def run_online(method: AdaptationMethod, stream: Stream, on_batch: Callable[[], None] = lambda: None) -> Evaluation:
    """Reset, then one pass: each batch is predicted and adapted to in the same forward."""
    method.reset()
    evaluation = Evaluation(online=True)
    for batch in stream:
        evaluation.add(batch.indices, method(batch.inputs), batch.labels)
        on_batch()
    return evaluation
