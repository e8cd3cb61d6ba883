"""What is known from the first predictions: balance, and what has changed since."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tta_cattan.methods.balance import FirstPredictions, balanced_limit


def predictions(labels, classes=10, confidence=0.9):
    """Return logits whose softmax has ``confidence`` at the labels and the rest evenly elsewhere."""
    p = torch.full((len(labels), classes), (1 - confidence) / (classes - 1))
    p[torch.arange(len(labels)), labels] = confidence
    return p.log()


@pytest.mark.parametrize(("n", "classes"), [(100, 10), (2000, 10), (2000, 100)])
def test_the_limit_has_room_for_the_deviation_of_equal_classes(n, classes):
    rng = np.random.default_rng(0)
    draws = rng.multinomial(n, np.full(classes, 1 / classes), size=2000) / n
    deviation = 0.5 * np.abs(draws - 1 / classes).sum(1).mean()
    assert balanced_limit(torch.tensor(0.0), n, classes).item() == pytest.approx(deviation, rel=0.02)
    assert balanced_limit(torch.tensor(0.3), n, classes).item() == pytest.approx(1.5 * 0.3 + deviation, rel=0.02)


@pytest.mark.parametrize("wrong", [0.0, 0.15, 0.3])
def test_errors_that_the_network_expects_never_refute_balance(wrong):
    """The worst case: all errors go to one class."""
    labels = torch.arange(1000) % 10
    labels[torch.rand(1000, generator=torch.Generator().manual_seed(0)) < wrong] = 3
    first = FirstPredictions()
    first.add(predictions(labels, confidence=1 - wrong - 1e-3))
    assert first.balanced()


@pytest.mark.parametrize("confidence", [0.85, 0.9, 0.999])
def test_missing_classes_are_seen_through_errors(confidence):
    first = FirstPredictions()
    for part in (torch.arange(1000) % 5).split(64):
        first.add(predictions(part, confidence=confidence))
    assert not first.balanced()


def test_few_samples_refute_nothing():
    first = FirstPredictions()
    assert first.balanced()
    first.add(predictions(torch.zeros(1, dtype=torch.long), confidence=0.99))
    assert first.balanced()


def test_what_changed_is_found_by_index():
    first = FirstPredictions()
    first.add(predictions(torch.tensor([1, 2, 3])), torch.tensor([7, 0, 4]))
    first.add(predictions(torch.tensor([5, 6])), torch.tensor([2, 9]))
    now = predictions(torch.tensor([6, 5, 0, 2, 8]))
    assert first.changed(now, torch.tensor([9, 2, 7, 0, 3])) == pytest.approx(1 / 4), "only 7 did; 3 was never seen"
    assert first.changed(now, torch.tensor([1, 3, 5, 6, 8])) == 1.0
    assert FirstPredictions().changed(now, torch.arange(5)) == 1.0


def test_what_is_not_finite_has_no_say():
    first, logits = FirstPredictions(), predictions(torch.arange(10))
    logits[4] = torch.nan
    first.add(logits, torch.arange(10))
    assert first.count == 9 and first.balanced()
    assert first.changed(predictions(torch.arange(10)), torch.arange(10)) == 0.0
    first.add(torch.full((3, 10), torch.inf))
    assert first.count == 9
    nothing = FirstPredictions()
    nothing.add(torch.full((3, 10), torch.nan), torch.arange(3))
    assert nothing.balanced() and nothing.changed(predictions(torch.arange(3)), torch.arange(3)) == 1.0
