"""Protocols for a single target domain, starting with a reset: online (TENT's) and offline (the paper's)."""

from __future__ import annotations

from collections.abc import Callable

from tta_cattan.bench.data.stream import Stream, Unlabelled
from tta_cattan.bench.protocols.evaluation import Evaluation, count_correct, predict_all
from tta_cattan.methods.base import AdaptationMethod
from tta_cattan.util.errors import UserError


def run_online(method: AdaptationMethod, stream: Stream, on_batch: Callable[[], None] = lambda: None) -> Evaluation:
    """Reset, then one pass: each batch is predicted and adapted to in the same forward."""
    method.reset()
    evaluation = Evaluation(online=True)
    for batch in stream:
        evaluation.add(batch.indices, method(batch.inputs), batch.labels)
        on_batch()
    return evaluation


def run_offline(
    method: AdaptationMethod,
    stream: Stream,
    epochs: int = 5,
    on_batch: Callable[[], None] = lambda: None,
    adapt_to: Stream | None = None,
) -> Evaluation:
    """Reset, learn from one pass, adapt for ``epochs`` passes in a new order each, predict without updates.

    ``adapt_to`` is the part of ``stream`` to adapt to (default: all); all of ``stream`` is predicted. ``on_batch`` is
    called after every update and every prediction, not in a method's own passes over the data.

    Note: the last epoch is reported, never the best: choosing one would need labels.
    """
    epoch_accuracies = adapt_offline(method, stream if adapt_to is None else adapt_to, epochs, on_batch)
    evaluation = predict_all(method, stream, on_batch)
    evaluation.epochs = epoch_accuracies
    return evaluation


def adapt_offline(
    method: AdaptationMethod,
    stream: Stream,
    epochs: int = 5,
    on_batch: Callable[[], None] = lambda: None,
    beforehand: Stream | None = None,
) -> list[float]:
    """Reset, learn from one pass, adapt for ``epochs`` passes; return the accuracy of each epoch's predictions.

    ``beforehand`` is what the first pass sees (default: all).

    Note: a method without a first pass is updated once on ``beforehand`` instead, so that it affects every method.
    """
    if method.episodic:
        raise UserError("an episodic method forgets after every batch: it cannot learn over epochs; use run_online")
    method.reset()
    method.prepare(Unlabelled(stream if beforehand is None else beforehand))
    if beforehand is not None and type(method).prepare is AdaptationMethod.prepare:
        method.start_epoch(Unlabelled(stream))
        _update(method, beforehand, on_batch)
    accuracies = []
    for epoch in range(epochs if method.optimizer is not None else 0):
        method.start_epoch(Unlabelled(stream))
        accuracies.append(_update(method, stream.reordered(epoch + 1), on_batch))
    method.finish(Unlabelled(stream))
    return accuracies


def _update(method: AdaptationMethod, stream: Stream, on_batch: Callable[[], None]) -> float:
    """Adapt to each batch once and return the accuracy, the only use of the labels."""
    correct = total = 0
    for batch in stream:
        correct += count_correct(method(batch.inputs, batch.indices), batch.labels)
        total += len(batch.labels)
        on_batch()
    return correct / total
