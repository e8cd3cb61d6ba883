"""What predictions say of the balance of classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tta_cattan.alignment import balanced_limit, may_be_balanced


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
    assert may_be_balanced(predictions(labels, confidence=1 - wrong - 1e-3))


@pytest.mark.parametrize("confidence", [0.85, 0.9, 0.999])
def test_missing_classes_are_seen_through_errors(confidence):
    assert not may_be_balanced(predictions(torch.arange(1000) % 5, confidence=confidence))


def test_few_samples_refute_nothing():
    assert may_be_balanced(torch.empty(0, 10))
    assert may_be_balanced(predictions(torch.zeros(1, dtype=torch.long), confidence=0.99))


def test_what_is_not_finite_has_no_say():
    logits = predictions(torch.arange(1000) % 10)
    spoilt = torch.cat(
        [logits, predictions(torch.zeros(5000, dtype=torch.long)).index_fill(1, torch.tensor(0), torch.inf)]
    )
    assert may_be_balanced(logits) and may_be_balanced(spoilt)
    assert may_be_balanced(torch.full((3, 10), torch.nan))
