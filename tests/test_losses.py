"""Every loss against a loop written from its formula, values and gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax

from tta_cattan import losses


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(17, 10, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 4


def entropy_loop(y: np.ndarray) -> float:
    p = softmax(y, axis=1)
    return float(np.mean([-sum(q * math.log(q) for q in row) for row in p]))


def hlr_loop(y: np.ndarray) -> float:
    terms = []
    for row in y:
        winner = int(np.argmax(row))
        terms.append(-row[winner] + logsumexp(np.delete(row, winner)))
    return float(np.mean(terms))


def slr_loop(y: np.ndarray) -> float:
    terms = []
    for row in y:
        p = softmax(row)
        terms.append(sum(p[c] * (-row[c] + logsumexp(np.delete(row, c))) for c in range(len(row))))
    return float(np.mean(terms))


def balance_loop(y: np.ndarray) -> float:
    mean = softmax(y, axis=1).mean(0)
    prior = 1 / len(mean)
    return float(-sum(prior * math.log(m) + (1 - prior) * math.log(1 - m) for m in mean))


def information_loop(y: np.ndarray) -> float:
    mean = softmax(y, axis=1).mean(0)
    return entropy_loop(y) + float(sum(m * math.log(m) for m in mean))


CASES = {
    losses.softmax_entropy: entropy_loop,
    losses.hard_likelihood_ratio: hlr_loop,
    losses.soft_likelihood_ratio: slr_loop,
    losses.class_balance: balance_loop,
    losses.information_maximization: information_loop,
}


def test_the_mean_over_classes_is_the_sum_divided_by_their_number(logits):
    mean = losses.class_balance(logits, "mean")
    torch.testing.assert_close(mean * logits.shape[1], losses.class_balance(logits))


@pytest.mark.parametrize("loss", CASES, ids=lambda f: f.__name__)
def test_value_equals_the_loop(loss, logits):
    assert loss(logits).item() == pytest.approx(CASES[loss](logits.numpy()), rel=1e-10)


@pytest.mark.parametrize("loss", CASES, ids=lambda f: f.__name__)
def test_gradient_equals_finite_differences(loss, logits):
    assert torch.autograd.gradcheck(loss, logits.requires_grad_())


@pytest.mark.parametrize("loss", CASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("scale", [0.0, 1e-3, 50.0, 1e4])
def test_finite_at_extreme_logits(loss, scale):
    logits = (torch.eye(8)[torch.arange(24) % 8] * scale).requires_grad_()
    value = loss(logits)
    value.backward()
    assert torch.isfinite(value) and torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("loss", CASES, ids=lambda f: f.__name__)
def test_finite_when_every_prediction_is_one_class(loss):
    logits = torch.zeros(6, 5)
    logits[:, 2] = 200.0
    logits.requires_grad_()
    value = loss(logits)
    value.backward()
    assert torch.isfinite(value) and torch.isfinite(logits.grad).all()


def test_hard_likelihood_ratio_keeps_its_gradient_where_entropy_loses_it():
    logits = torch.tensor([[30.0, 0.0, 0.0]], requires_grad=True)
    losses.hard_likelihood_ratio(logits).backward()
    hlr = logits.grad.abs().max().item()
    logits.grad = None
    losses.softmax_entropy(logits).backward()
    assert hlr == pytest.approx(1.0) and logits.grad.abs().max() < 1e-8


def test_divergence_from_uniform():
    assert losses.divergence_from_uniform(torch.full((7,), 1 / 7)).item() == pytest.approx(0, abs=1e-6)
    mean = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    expected = sum(m * math.log(m * 3) for m in mean.tolist())
    assert losses.divergence_from_uniform(mean).item() == pytest.approx(expected)
