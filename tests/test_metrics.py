"""Accuracy, calibration and ranking against scikit-learn or a loop from the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from tta_cattan import UserError, metrics


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
    assert metrics.reliability_bins(confidence, correct, 2).calibration_error == pytest.approx(0.5, abs=1e-5)
    assert metrics.reliability_bins(confidence, correct, 1).calibration_error == pytest.approx(0.0, abs=1e-5)


def test_confidence_one_is_in_the_last_bin():
    bins = metrics.reliability_bins(torch.ones(4), torch.tensor([1, 1, 1, 0]).bool())
    assert bins.count[-1] == 4 and bins.calibration_error == pytest.approx(0.25)


def test_accuracy():
    logits = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]])
    assert metrics.accuracy(logits, torch.tensor([1, 1, 1])) == pytest.approx(2 / 3)


def predictions(n=500, classes=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64) * 3
    return logits, torch.randint(0, classes, (n,), generator=generator)


def test_nll_is_the_log_loss():
    logits, labels = predictions()
    expected = log_loss(labels.numpy(), softmax(logits.numpy(), axis=1), labels=range(7))
    assert metrics.negative_log_likelihoods(logits, labels).mean().item() == pytest.approx(expected, abs=1e-12)


def test_nll_of_a_certain_mistake_is_finite():
    # exp(-200) is 0 in float32: the logarithm of the rounded probability would be infinite.
    logits, labels = torch.tensor([[200.0, 0.0]]), torch.tensor([1])
    assert metrics.negative_log_likelihoods(logits, labels).item() == pytest.approx(200)


def test_brier_equals_the_loop():
    logits, labels = predictions()
    found = metrics.brier_scores(logits, labels)
    for row, label, score in zip(softmax(logits.numpy(), axis=1), labels.tolist(), found.tolist(), strict=True):
        assert score == pytest.approx(sum((p - (c == label)) ** 2 for c, p in enumerate(row)), abs=1e-12)


def test_brier_of_two_classes_is_twice_the_binary_one():
    logits, labels = predictions(classes=2)
    expected = 2 * brier_score_loss(labels.numpy(), softmax(logits.numpy(), axis=1)[:, 1])
    assert metrics.brier_scores(logits, labels).mean().item() == pytest.approx(expected, abs=1e-12)


@given(
    st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=40).filter(
        lambda samples: len({positive for _, positive in samples}) == 2
    )
)
def test_auroc_is_scikit_learns_with_ties(samples):
    scores, positive = map(list, zip(*samples, strict=True))
    found = metrics.auroc(torch.tensor(scores, dtype=torch.float32), torch.tensor(positive))
    assert found == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)


def test_auroc_without_an_answer_is_refused():
    with pytest.raises(UserError, match="3 positive and 0 negative"):
        metrics.auroc(torch.rand(3), torch.ones(3))
    with pytest.raises(UserError, match="NaN"):
        metrics.auroc(torch.tensor([0.1, float("nan")]), torch.tensor([True, False]))


def test_reliability_bins_equal_a_loop_and_add_up():
    generator = torch.Generator().manual_seed(3)
    confidence = torch.rand(400, generator=generator, dtype=torch.float64)
    correct = torch.rand(400, generator=generator) < confidence
    bins = metrics.reliability_bins(confidence, correct, 10)
    for b in range(10):
        inside = [i for i, value in enumerate(confidence.tolist()) if b / 10 < value <= (b + 1) / 10]
        assert bins.count[b] == len(inside)
        assert bins.confidence[b] == pytest.approx(sum(confidence[i].item() for i in inside))
        assert bins.correct[b] == sum(bool(correct[i]) for i in inside)
    halves = [metrics.reliability_bins(confidence[half], correct[half], 10) for half in (slice(150), slice(150, None))]
    both = halves[0] + halves[1]
    assert (both.count, both.correct) == (bins.count, bins.correct)
    assert both.confidence == pytest.approx(bins.confidence)
    assert both.calibration_error == pytest.approx(bins.calibration_error)
