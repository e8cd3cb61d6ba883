"""Evaluation metrics: pure functions of logits (n x classes), confidences, scores and labels (n)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tta_cattan.util.errors import UserError


@dataclass(frozen=True)
class ReliabilityBins:
    """Sample count, summed confidence and number correct per equal-width, right-closed bin of the confidence.

    Note: sums, not means, so that the bins of several domains or seeds can be added.
    """

    count: tuple[int, ...]
    confidence: tuple[float, ...]
    correct: tuple[int, ...]

    def __add__(self, other: ReliabilityBins) -> ReliabilityBins:
        """Return the bins of both sets of samples combined."""
        pairs = ((self.count, other.count), (self.confidence, other.confidence), (self.correct, other.correct))
        return ReliabilityBins(*(tuple(a + b for a, b in zip(*pair, strict=True)) for pair in pairs))

    @property
    def calibration_error(self) -> float:
        """The expected calibration error, ``sum_b n_b / n |acc_b - conf_b|``."""
        gaps = (abs(right - sure) for right, sure in zip(self.correct, self.confidence, strict=True))
        return sum(gaps) / sum(self.count)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the fraction of samples whose largest logit is the label's."""
    return (logits.argmax(1) == labels).float().mean().item()


def expected_calibration_error(logits: Tensor, labels: Tensor, n_bins: int = 15) -> float:
    """Return ``sum_b n_b / n |acc_b - conf_b|`` over ``n_bins`` equal-width, right-closed bins of the confidence."""
    confidence, prediction = logits.softmax(1).max(1)
    return reliability_bins(confidence, prediction == labels, n_bins).calibration_error


def reliability_bins(confidence: Tensor, correct: Tensor, n_bins: int = 15) -> ReliabilityBins:
    """Return the bins of a reliability diagram from the confidences and correctness of n samples."""
    confidence, correct = confidence.cpu().double(), correct.cpu().double()  # not every device has float64
    edges = torch.linspace(0, 1, n_bins + 1, dtype=torch.float64)
    # right=False puts a confidence equal to an edge into the bin below it: (a, b].
    bins = torch.bucketize(confidence, edges[1:-1], right=False)
    count, sure, right = (
        torch.bincount(bins, weights, minlength=n_bins).tolist() for weights in (None, confidence, correct)
    )
    return ReliabilityBins(tuple(count), tuple(sure), tuple(map(int, right)))


def negative_log_likelihoods(logits: Tensor, labels: Tensor) -> Tensor:
    """Return ``-log p_y`` per sample, in float64 so that tiny probabilities do not round to 0."""
    return -logits.cpu().double().log_softmax(1).gather(1, labels.cpu()[:, None])[:, 0]


def brier_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """Return ``sum_c (p_c - [c = y])^2`` per sample: 0 at best, 2 at worst."""
    p = logits.cpu().double().softmax(1)
    return p.square().sum(1) - 2 * p.gather(1, labels.cpu()[:, None])[:, 0] + 1


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Return ``P(score of a positive > score of a negative) + P(equal) / 2``, computed from the ranks of the scores."""
    positive = positive.cpu().bool()
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    if not n_positive or not n_negative:
        raise UserError(f"AUROC of {n_positive} positive and {n_negative} negative samples: it needs both kinds")
    if scores.isnan().any():
        raise UserError("AUROC of scores with NaN among them: they have no order; leave those samples out")
    _, place, count = scores.cpu().double().unique(return_inverse=True, return_counts=True)
    rank = (count.cumsum(0) - (count - 1) / 2)[place]  # tied scores share their mean rank
    above = rank[positive].double().sum().item() - n_positive * (n_positive + 1) / 2
    return above / (n_positive * n_negative)
