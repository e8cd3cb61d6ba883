"""Collect predictions batch by batch, and compute their metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tta_cattan.bench.data.stream import Stream
from tta_cattan.methods.base import AdaptationMethod
from tta_cattan.metrics import brier_scores, negative_log_likelihoods, reliability_bins
from tta_cattan.util.errors import UserError

_WINDOWS = 40


class Evaluation:
    """Prediction, confidence, label and scores of every sample of a target set, in order of arrival.

    ``epochs`` holds the accuracy of each epoch's predictions while adapting; ``online`` says whether the method adapted
    to the samples as they arrived.

    Note: logits are not kept: those of 50,000 samples of 1,000 classes would be large.
    """

    def __init__(self, online: bool = False) -> None:
        self.online = online
        self.epochs: list[float] = []
        self._parts: list[tuple[Tensor, ...]] = []

    def add(self, indices: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add a batch of predictions; refuse a label that the model has no output for."""
        n_outputs = logits.shape[1]
        labels = labels.cpu()
        outside = labels[(labels < 0) | (labels >= n_outputs)]
        if len(outside):
            raise UserError(
                f"label {int(outside[0])} is outside the model's {n_outputs} outputs: data set and model do not "
                "match; check CORRUPTION.DATASET and MODEL.ARCH"
            )
        logits = logits.detach().float().cpu()
        confidence, prediction = logits.softmax(1).max(1)
        lost = confidence.isnan()  # no prediction: wrong, confidence 0, uniform scores
        logits = logits.masked_fill(lost[:, None], 0.0)
        scores = negative_log_likelihoods(logits, labels), brier_scores(logits, labels)
        found = prediction.masked_fill(lost, -1), confidence.masked_fill(lost, 0.0)
        self._parts.append((indices.cpu(), *found, labels, *scores))

    @property
    def index(self) -> Tensor:
        return self._column(0)

    @property
    def prediction(self) -> Tensor:
        """The predicted classes, -1 where there was none."""
        return self._column(1)

    @property
    def confidence(self) -> Tensor:
        """The probabilities of the predicted classes."""
        return self._column(2)

    @property
    def label(self) -> Tensor:
        return self._column(3)

    @property
    def correct(self) -> Tensor:
        return self.prediction == self.label

    def metrics(self) -> dict[str, float]:
        """Return accuracy and expected calibration error (fractions), the mean NLL and Brier score, and n."""
        return {
            "accuracy": self.correct.double().mean().item(),
            "ece": reliability_bins(self.confidence, self.correct).calibration_error,
            "nll": self._column(4).mean().item(),
            "brier": self._column(5).mean().item(),
            "n": len(self.label),
        }

    def facts(self) -> dict[str, Any]:
        """Return the number of samples without a prediction, and the data for figures.

        The latter are the reliability bins, and the accuracy by epoch or the running count of correct predictions.
        """
        bins = {name: list(values) for name, values in vars(reliability_bins(self.confidence, self.correct)).items()}
        facts = {"reliability": bins, "lost": int((self.prediction < 0).sum())}
        if not self.online:
            return {**facts, "epochs": self.epochs}
        seen = sorted({round(len(self.label) * part / _WINDOWS) for part in range(1, _WINDOWS + 1)} - {0})
        right = self.correct.long().cumsum(0)
        return {**facts, "stream": {"seen": seen, "correct": [int(right[n - 1]) for n in seen]}}

    def predictions(self) -> dict[str, NDArray[Any]]:
        """Return index, prediction, confidence and label in the order of the data set, in compact types."""
        order = self.index.argsort().numpy()
        return {name: column[order] for name, column in self.columns().items()}

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return index, prediction, confidence and label in order of arrival, in compact types."""
        whole = np.int16 if int(torch.maximum(self.prediction, self.label).max()) < 2**15 else np.int32
        kinds = {"index": np.int32, "prediction": whole, "confidence": np.float32, "label": whole}
        return {name: getattr(self, name).numpy().astype(kind) for name, kind in kinds.items()}

    @property
    def count(self) -> int:
        return sum(len(part[0]) for part in self._parts)

    def parts(self) -> tuple[Tensor, ...]:
        """Return everything that was added, for a checkpoint."""
        return tuple(map(self._column, range(len(self._parts[0]))))

    def restore(self, parts: tuple[Tensor, ...]) -> None:
        """Continue from what ``parts`` returned."""
        self._parts = [parts]

    def _column(self, place: int) -> Tensor:
        return torch.cat([part[place] for part in self._parts])


def predict_all(method: AdaptationMethod, stream: Stream, on_batch: Callable[[], None] = lambda: None) -> Evaluation:
    """Predict a data set with the method as it is, without an update."""
    evaluation = Evaluation()
    for batch in stream:
        evaluation.add(batch.indices, method.predict(batch.inputs), batch.labels)
        on_batch()
    return evaluation


def count_correct(logits: Tensor, labels: Tensor) -> int:
    """Return how many predictions are right; NaN logits count as wrong."""
    right = logits.argmax(1).cpu() == labels.cpu()
    return int((right & ~logits.isnan().any(1).cpu()).sum())
