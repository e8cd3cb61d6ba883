"""Predictions collected batch by batch, and what they are worth."""

from __future__ import annotations

import torch
from torch import Tensor

from tta_cattan.errors import UserError
from tta_cattan.metrics import reliability_bins


class Evaluation:
    """Prediction, confidence and label of every sample of a target set.

    Note: the logits themselves are not kept, so that 50,000 samples of 1,000 classes stay small.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[Tensor]] = {"index": [], "prediction": [], "confidence": [], "label": []}

    def add(self, indices: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add a batch of predictions; a label that the model has no output for is refused."""
        n_outputs = logits.shape[1]
        outside = labels[(labels < 0) | (labels >= n_outputs)]
        if len(outside):
            raise UserError(
                f"label {int(outside[0])} is outside the model's {n_outputs} outputs: data set and model do not belong "
                "together; check CORRUPTION.DATASET and MODEL.ARCH"
            )
        confidence, prediction = logits.float().softmax(1).max(1)
        lost = confidence.isnan()  # no prediction: wrong, with no confidence in it
        confidence, prediction = confidence.masked_fill(lost, 0.0), prediction.masked_fill(lost, -1)
        for name, part in zip(self._parts, (indices, prediction, confidence, labels), strict=True):
            self._parts[name].append(part.cpu())

    def __getattr__(self, name: str) -> Tensor:
        """Return a column: ``index``, ``prediction``, ``confidence`` or ``label``."""
        parts = self.__dict__.get("_parts", {}).get(name)
        if parts is None:
            raise AttributeError(name)
        return torch.cat(parts)

    def metrics(self) -> dict[str, float]:
        """Return accuracy and expected calibration error (fractions) and the number of samples."""
        correct = self.prediction == self.label
        return {
            "accuracy": correct.double().mean().item(),
            "ece": reliability_bins(self.confidence, correct).calibration_error,
            "n": len(correct),
        }
