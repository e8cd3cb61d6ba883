"""Accuracy and calibration against a loop from the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax

from tta_cattan import metrics


def ece_loop(logits: np.ndarray, labels: np.ndarray, n_bins: int) -> float:
    p = softmax(logits.astype(np.float64), axis=1)
    confidence, correct = p.max(1), p.argmax(1) == labels
    total = 0.0
    for b in range(n_bins):
        inside = (confidence > b / n_bins) & (confidence <= (b + 1) / n_bins)
        if inside.any():
            total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return total


@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_ece_equals_the_loop(n_bins):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2000, 6, generator=generator, dtype=torch.float64) * 2
    labels = torch.randint(0, 6, (2000,), generator=generator)
    expected = ece_loop(logits.numpy(), labels.numpy(), n_bins)
    assert metrics.expected_calibration_error(logits, labels, n_bins) == pytest.approx(expected, abs=1e-9)


def test_bins_are_closed_on_the_right():
    # 0.5 belongs to (0, 0.5], so with two bins each confidence sits alone and the gaps do not cancel.
    confidence = torch.tensor([0.5, 0.500001])
    correct = torch.tensor([True, False])
    assert metrics.calibration_error(confidence, correct, 2) == pytest.approx(0.5, abs=1e-5)
    assert metrics.calibration_error(confidence, correct, 1) == pytest.approx(0.0, abs=1e-5)


def test_confidence_one_is_in_the_last_bin():
    assert metrics.calibration_error(torch.ones(4), torch.tensor([1, 1, 1, 0]).bool()) == pytest.approx(0.25)


def test_accuracy():
    logits = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]])
    assert metrics.accuracy(logits, torch.tensor([1, 1, 1])) == pytest.approx(2 / 3)
