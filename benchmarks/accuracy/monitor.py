"""How well accuracy is estimated without labels, and what the monitor finds: ``python -m benchmarks.accuracy.monitor``.

Anything that is fitted is fitted to clean test images and to five corruptions that are not reported.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.accuracy import estimators
from benchmarks.accuracy.monitor_runs import (
    CHOOSING,
    REPORTED,
    SEVERITIES,
    Outputs,
    Run,
    clean_runs,
    make_data,
    outputs_of,
    stream_runs,
)
from tta_cattan.alignment import SubspaceTracker
from tta_cattan.monitor import Monitor, Reference, frechet_distance, transport_confidence

Score = Callable[[Outputs], float]


def principal_angle(reference: Reference, outputs: Outputs) -> float:
    """``1 - ||W_s^T W_t||_F^2 / d``, the mean squared sine of the angles between ``W_s`` and the tracked ``W_t``."""
    source = reference.subspace
    tracker = SubspaceTracker(source, source.d, prior=0.0)
    for rows in outputs.features.split(outputs.batch):
        tracker.update(rows)
    return 1 - (source.basis.T @ tracker.basis).square().sum().item() / source.d


def raw_scores(clean: Outputs, reference: Reference) -> dict[str, Score]:
    """Return what each estimator computes, before any line."""
    logits, accuracy, source = clean.logits, clean.accuracy, reference.subspace

    def drift(o: Outputs) -> float:
        return frechet_distance((o.features - source.mean) @ source.basis, reference.variances)

    def outside(o: Outputs) -> float:
        centred = o.features - source.mean
        return 1 - ((centred @ source.basis).square().sum() / centred.square().sum()).item()

    return {
        "average confidence": lambda o: estimators.average_confidence(o.logits),
        "difference of confidences": lambda o: estimators.difference_of_confidences(o.logits, logits, accuracy),
        "ATC": lambda o: estimators.thresholded_confidence(o.logits, logits, accuracy),
        "AETTA": lambda o: estimators.dropout_agreement(o.logits, o.dropped, o.softened),
        "transport": lambda o: transport_confidence(o.logits.softmax(1), reference.prior),
        "nuclear norm": lambda o: estimators.nuclear_norm(o.logits),
        "angles": lambda o: principal_angle(reference, o),
        "energy outside W_s": outside,
        "Fréchet distance": drift,
    }
