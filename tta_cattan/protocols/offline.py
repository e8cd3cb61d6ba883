"""The offline protocol, the paper's."""

from __future__ import annotations

from collections.abc import Callable

from tta_cattan.data.stream import Stream, Unlabelled
from tta_cattan.errors import UserError
from tta_cattan.methods.base import AdaptationMethod
from tta_cattan.protocols.evaluation import Evaluation


def run_offline(
    method: AdaptationMethod, stream: Stream, epochs: int = 5, on_batch: Callable[[], None] = lambda: None
) -> Evaluation:
    """Reset, learn from one pass, adapt for ``epochs`` passes in new orders each, then predict without updates.

    Note: the last epoch is reported, never the best: choosing one would need labels.
    """
    if method.episodic:
        raise UserError("an episodic method forgets after every batch: it cannot learn over epochs; use run_online")
    method.reset()
    method.prepare(Unlabelled(stream, on_batch))
    for epoch in range(epochs if method.optimizer is not None else 0):
        method.start_epoch(Unlabelled(stream, on_batch))
        for batch in stream.reordered(epoch + 1):
            method(batch.inputs, batch.indices)
            on_batch()
    evaluation = Evaluation()
    for batch in stream:
        evaluation.add(batch.indices, method.predict(batch.inputs), batch.labels)
        on_batch()
    return evaluation
