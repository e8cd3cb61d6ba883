"""Estimates of accuracy without labels, each written from its paper: what the monitor's own is compared with."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tta_cattan.monitor.estimate import negative_entropy


def average_confidence(logits: Tensor) -> float:
    """``mean max_c p_c`` (Hendrycks and Gimpel 2017)."""
    return logits.double().softmax(1).amax(1).mean().item()


def difference_of_confidences(logits: Tensor, clean: Tensor, clean_accuracy: float) -> float:
    """``accuracy on clean data - (its average confidence - the target's)`` (Guillory et al. 2021)."""
    return clean_accuracy - (average_confidence(clean) - average_confidence(logits))


def thresholded_confidence(logits: Tensor, clean: Tensor, clean_accuracy: float) -> float:
    """Share of samples whose negative entropy is above t, the level that clean data exceed as often as they are right.

    ATC-NE of Garg et al. 2022.
    """
    scores = negative_entropy(clean).sort().values
    wrong = round((1 - clean_accuracy) * len(scores))
    threshold = scores[min(wrong, len(scores) - 1)]
    return (negative_entropy(logits) >= threshold).double().mean().item()


def dropout_agreement(logits: Tensor, dropped: Tensor, softened: Tensor, alpha: float = 3.0) -> float:
    """``1 - b mean(prediction != prediction under dropout)``, ``b = (H(mean probability) / log C)^-alpha``.

    AETTA of Lee et al. 2024; ``dropped`` (n x draws) are the classes predicted under dropout, ``softened`` (n x C) the
    mean probabilities under it, and the error is at most that of chance.
    """
    classes = logits.shape[1]
    disagreement = (dropped != logits.argmax(1)[:, None]).double().mean().item()
    entropy = torch.special.entr(softened.double().mean(0)).sum().item() / math.log(classes)
    return 1 - min(disagreement * max(entropy, 1e-6) ** -alpha, 1 - 1 / classes)


def nuclear_norm(logits: Tensor) -> float:
    """``||P||_* / sqrt(min(n, C) n)`` of the n x C probabilities (Deng et al. 2023): no accuracy yet, a correlate."""
    p = logits.double().softmax(1)
    return torch.linalg.matrix_norm(p, "nuc").item() / math.sqrt(min(p.shape) * len(p))
