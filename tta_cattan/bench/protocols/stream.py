"""One pass over a stream of domains: predict while adapting, reset only where the setting says so."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from tta_cattan.bench.data.domain_stream import DomainStream
from tta_cattan.bench.data.stream import Stream
from tta_cattan.bench.data.stream_plan import StreamPlan
from tta_cattan.bench.protocols.evaluation import Evaluation, predict_all
from tta_cattan.methods.base import AdaptationMethod
from tta_cattan.monitor import Monitor, Reading, Tap
from tta_cattan.util.errors import UserError
from tta_cattan.util.state import load_state, restore_generators, save_state

logger = logging.getLogger(__name__)

WINDOW = 250  # samples
_SAVE_EVERY = 2000  # samples, not seconds, so that a run is saved at the same points at any speed


class StreamEvaluation(Evaluation):
    """The predictions over a stream, in its order, and where it collapsed; an index is within the sample's domain."""

    def __init__(self, plan: StreamPlan) -> None:
        super().__init__(online=True)
        self.plan = plan
        self.collapses: list[int] = []  # samples seen when each was found
        self.watched: list[list[float]] = []  # per window: samples seen, estimate, its interval, drift
        self.changes: list[int] = []  # samples seen when the monitor found a new domain
        self.earlier_seconds = 0.0  # spent before an interruption

    def note(self, reading: Reading) -> None:
        """Keep a reading of the monitor if it completes a window, and every change of domain that it reports."""
        if "change" in reading.state:
            self.changes.append(reading.seen)
        estimate, last = reading.accuracy, self.watched[-1][0] if self.watched else 0
        if estimate is not None and reading.seen // WINDOW > last // WINDOW:
            self.watched.append([reading.seen, estimate.value, estimate.low, estimate.high, reading.drift])

    def metrics(self) -> dict[str, float]:
        """Return the metrics of all predictions, and the accuracy in the worst window.

        Note: only whole windows count, unless there is none.
        """
        right, sizes = window_counts(self.correct)
        shares = [r / n for r, n in zip(right, sizes, strict=True) if n == WINDOW or len(sizes) == 1]
        return {**super().metrics(), "worst_window": min(shares)}

    def facts(self) -> dict[str, Any]:
        """Return lost predictions, reliability, hits per window and visit, domain bands, collapses, readings."""
        visit = torch.from_numpy(self.plan.visit)
        n_visits = len(self.plan.visits)
        seen, right = (torch.bincount(one, minlength=n_visits).tolist() for one in (visit, visit[self.correct]))
        whole = super().facts()
        return {
            **{name: whole[name] for name in ("reliability", "lost")},
            "windows": {"size": WINDOW, "correct": window_counts(self.correct)[0]},
            "visits": [
                {"domain": domain.label, "n": n, "correct": hits}
                for domain, n, hits in zip(self.plan.visits, seen, right, strict=True)
            ],
            "bands": [list(band) for band in self.plan.bands],
            "collapsed_at": self.collapses,
            **({"monitor": {"readings": self.watched, "changes": self.changes}} if self.watched else {}),
        }

    def predictions(self) -> dict[str, NDArray[Any]]:
        """Return the columns in the order of the stream, with the number of each sample's visit."""
        return {**self.columns(), "visit": self.plan.visit.astype("int32")}


def window_counts(correct: Tensor) -> tuple[list[int], list[int]]:
    """Return the numbers of correct predictions and of samples in each window; the last may be short."""
    windows = correct.split(WINDOW)
    return [int(window.sum()) for window in windows], [len(window) for window in windows]


def run_stream(
    method: AdaptationMethod,
    stream: DomainStream,
    checkpoint: Path | None = None,
    on_batch: Callable[[], None] = lambda: None,
    adapt_every: int = 1,
    monitor: Monitor | None = None,
) -> StreamEvaluation:
    """Predict and adapt to each batch once; resume from ``checkpoint`` if it exists, bit for bit.

    With ``adapt_every = n``, the method adapts to every n-th batch and only predicts the others. A monitor observes.

    Note: the caller deletes the checkpoint after storing the result. A method that is not resumable writes none.
    """
    evaluation = StreamEvaluation(stream.plan)
    if not method.resumable:
        logger.info("%s keeps state of its own: if interrupted, its stream starts again", type(method).title)
        checkpoint = None
    done = 0 if checkpoint is None else _resume(checkpoint, method, evaluation, monitor)
    tap = None if monitor is None else Tap(method)
    started, every = time.perf_counter(), -(-_SAVE_EVERY // stream.batch_size)
    for number, (reset, batch) in enumerate(stream.batches(done), start=done + 1):
        if reset:
            method.reset()
        before = method.safety.collapses
        adapting = (number - 1) % adapt_every == 0
        run = method if adapting else method.predict
        logits, features = (run(batch.inputs), None) if tap is None else tap(run, batch.inputs)
        evaluation.add(batch.indices, logits, batch.labels)
        if monitor is not None:
            evaluation.note(monitor.observe(logits, features))
        if method.safety.collapses > before:
            evaluation.collapses.append(evaluation.count)
        if checkpoint is not None and number % every == 0:
            seconds = evaluation.earlier_seconds + time.perf_counter() - started
            _save(checkpoint, method, evaluation, number, seconds, monitor)
        on_batch()
    return evaluation


def accuracy_without_updates(
    method: AdaptationMethod, stream: Stream, on_batch: Callable[[], None] = lambda: None
) -> float:
    """Return the accuracy of the method on a data set, without adapting it."""
    return predict_all(method, stream, on_batch).correct.double().mean().item()


def _save(
    path: Path,
    method: AdaptationMethod,
    evaluation: StreamEvaluation,
    done: int,
    seconds: float,
    monitor: Monitor | None,
) -> None:
    """Write everything that the rest of the stream depends on."""
    state = {
        "done": done,
        "seconds": seconds,
        "method": dict(method.state_dict()),
        "evaluation": evaluation.parts(),
        "collapses": evaluation.collapses,
        "monitor": None if monitor is None else [monitor.state_dict(), evaluation.watched, evaluation.changes],
    }
    save_state(path, state)


def _resume(path: Path, method: AdaptationMethod, evaluation: StreamEvaluation, monitor: Monitor | None) -> int:
    """Load a checkpoint and return the number of finished batches; 0 if it is missing or damaged."""
    state = load_state(path)
    if state is None:
        return 0
    try:
        done = int(state["done"])
        method.load_state_dict(state["method"])
        evaluation.restore(tuple(state["evaluation"]))
        evaluation.collapses, evaluation.earlier_seconds = state["collapses"], state["seconds"]
        if monitor is not None:
            watching, evaluation.watched, evaluation.changes = state["monitor"]
            monitor.load_state_dict(watching)
        restore_generators(state)
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"the checkpoint {path} is of another version of the method: delete it") from error
    logger.info("resuming the stream after %d batches (%s)", done, path)
    return done
