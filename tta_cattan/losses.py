"""Unsupervised losses on logits (batch x classes): pure functions, each with its formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor


def softmax_entropy(logits: Tensor) -> Tensor:
    """Return the entropy of the predictions: ``-sum_c p_c log p_c``, batch mean, ``p = softmax(y)``."""
    log_p = logits.log_softmax(1)
    return -(log_p.exp() * log_p).sum(1).mean()


def hard_likelihood_ratio(logits: Tensor) -> Tensor:
    """Return the hard likelihood ratio: ``-y_{c*} + log sum_{i != c*} exp(y_i)``, batch mean, ``c* = argmax y``.

    Note: unlike the gradient of entropy, its gradient does not vanish at confident samples.
    """
    top, winner = logits.max(1, keepdim=True)
    others = logits.scatter(1, winner, float("-inf"))
    return (others.logsumexp(1) - top.squeeze(1)).mean()


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """Soft likelihood ratio: ``sum_c p_c (-y_c + log sum_{i != c} exp(y_i))``, batch mean, ``p = softmax(y)``.

    The inner term equals ``-log p_c + log(1 - p_c)``, so no C x C array is formed. For the largest class,
    ``log(1 - p_c)`` is computed as ``log sum_{i != c} p_i``, because ``1 - p_c`` would cancel.
    """
    log_p = logits.log_softmax(1)
    p = log_p.exp()
    winner = log_p.argmax(1, keepdim=True)
    log_rest_of_winner = log_p.scatter(1, winner, float("-inf")).logsumexp(1, keepdim=True)
    # Every class but the winner has p <= 1/2, where log1p(-p) keeps full precision.
    log_rest = torch.log1p(-p.scatter(1, winner, 0.0)).scatter(1, winner, log_rest_of_winner)
    return (p * (log_rest - log_p)).sum(1).mean()


def class_balance(logits: Tensor, reduction: str = "sum") -> Tensor:
    """Return the paper's class-balance loss: binary cross-entropy between the mean prediction and the uniform prior.

    ``-sum_c [1/C log m_c + (1 - 1/C) log(1 - m_c)]`` with ``m`` the batch mean of ``softmax(y)``; ``reduction="mean"``
    divides it by C.

    Note: the paper does not specify the reduction. With the mean, the term vanishes when there are many classes.
    """
    mean = logits.softmax(1).mean(0)
    prior = torch.full_like(mean, 1.0 / mean.numel())
    return F.binary_cross_entropy(mean.clamp(0.0, 1.0), prior, reduction=reduction)


def information_maximization(logits: Tensor) -> Tensor:
    """Return the mean entropy minus the entropy of the mean prediction (SHOT; class balance in the authors' code)."""
    return softmax_entropy(logits) - mean_entropy(logits.softmax(1).mean(0))


def mean_entropy(mean: Tensor) -> Tensor:
    """Return the entropy of one distribution: ``-sum_c m_c log m_c`` with ``0 log 0 = 0``."""
    return torch.special.entr(mean.clamp_min(torch.finfo(mean.dtype).tiny)).sum()


def divergence_from_uniform(mean: Tensor) -> Tensor:
    """Return ``KL(m || uniform) = log C - H(m)`` for one distribution over C classes."""
    return math.log(mean.numel()) - mean_entropy(mean)


CONFIDENCE: dict[str, Callable[[Tensor], Tensor]] = {
    "hlr": hard_likelihood_ratio,
    "slr": soft_likelihood_ratio,
    "entropy": softmax_entropy,
}
CLASS_BALANCE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": class_balance,
    "mean": partial(class_balance, reduction="mean"),
    "entropy": information_maximization,
}
