"""What a prediction is worth: pure functions on logits (n x classes) and labels (n)."""

from __future__ import annotations

import torch
from torch import Tensor


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Fraction of samples whose largest logit is the label's."""
    return (logits.argmax(1) == labels).float().mean().item()


def expected_calibration_error(logits: Tensor, labels: Tensor, n_bins: int = 15) -> float:
    """``sum_b n_b / n |acc_b - conf_b|`` over ``n_bins`` equal-width, right-closed bins of the confidence."""
    confidence, prediction = logits.softmax(1).max(1)
    return calibration_error(confidence, prediction == labels, n_bins)


def calibration_error(confidence: Tensor, correct: Tensor, n_bins: int = 15) -> float:
    """Expected calibration error from the confidences and correctness of n samples (see above)."""
    confidence, correct = confidence.cpu().double(), correct.cpu()  # not every device has float64
    edges = torch.linspace(0, 1, n_bins + 1, dtype=torch.float64)
    # right=False puts a confidence that equals an edge into the bin which that edge closes: (a, b].
    bins = torch.bucketize(confidence, edges[1:-1], right=False)
    gap = torch.zeros(n_bins, dtype=torch.float64)
    gap.index_add_(0, bins, correct.double() - confidence)
    return gap.abs().sum().item() / len(confidence)
