"""Published estimates of accuracy without labels, against loops that follow their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from digits_runs import overrides

from benchmarks.accuracy import monitor_images
from benchmarks.accuracy.estimators import (
    average_confidence,
    difference_of_confidences,
    dropout_agreement,
    nuclear_norm,
    thresholded_confidence,
)
from benchmarks.accuracy.monitor import collapse_began
from benchmarks.accuracy.monitor_runs import Outputs

RNG = np.random.default_rng(0)
CLEAN, TARGET = RNG.normal(0, 3, (50, 4)), RNG.normal(0, 1, (30, 4))
ACCURACY = 0.8


def softmax(logits: np.ndarray) -> list[list[float]]:
    return [[math.exp(y) / sum(math.exp(other) for other in row) for y in row] for row in logits]


def confidence(logits: np.ndarray) -> float:
    return sum(max(row) for row in softmax(logits)) / len(logits)


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.tensor(array) for array in arrays]


def test_average_confidence_and_the_difference():
    target, clean = tensors(TARGET, CLEAN)
    assert average_confidence(target) == pytest.approx(confidence(TARGET))
    expected = ACCURACY - (confidence(CLEAN) - confidence(TARGET))
    assert difference_of_confidences(target, clean, ACCURACY) == pytest.approx(expected)
    assert difference_of_confidences(clean, clean, ACCURACY) == pytest.approx(ACCURACY)


def test_thresholded_confidence():
    def scores(logits: np.ndarray) -> list[float]:
        return [sum(p * math.log(p) for p in row) for row in softmax(logits)]

    # The threshold that as many clean samples fall below as are wrong: 10 of 50.
    threshold = sorted(scores(CLEAN))[10]
    expected = sum(score >= threshold for score in scores(TARGET)) / len(TARGET)
    target, clean = tensors(TARGET, CLEAN)
    assert thresholded_confidence(target, clean, ACCURACY) == pytest.approx(expected)
    assert thresholded_confidence(clean, clean, ACCURACY) == pytest.approx(ACCURACY)


def test_dropout_agreement():
    dropped, softened = RNG.integers(0, 4, (30, 5)), RNG.dirichlet([1, 2, 3, 4], 30)
    pairs = [(row.argmax(), draw) for row, draws in zip(TARGET, dropped, strict=True) for draw in draws]
    wrong = sum(a != b for a, b in pairs) / len(pairs)
    mean = [sum(row[c] for row in softened) / 30 for c in range(4)]
    weight = (-sum(m * math.log(m) for m in mean) / math.log(4)) ** -3
    found = dropout_agreement(*tensors(TARGET, dropped, softened))
    assert found == pytest.approx(1 - min(weight * wrong, 0.75))
    same = np.repeat(TARGET.argmax(1)[:, None], 5, 1)
    assert dropout_agreement(*tensors(TARGET, same, softened)) == 1
    collapsed = np.tile([0.997, 0.001, 0.001, 0.001], (30, 1))
    assert dropout_agreement(*tensors(TARGET, dropped, collapsed)) == pytest.approx(0.25), "chance at worst"


def test_nuclear_norm():
    p = np.array(softmax(TARGET))
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(p.T @ p), 0))
    assert nuclear_norm(torch.tensor(TARGET)) == pytest.approx(values.sum() / math.sqrt(4 * 30))


def test_a_collapse_begins_when_five_batches_are_half_as_often_right():
    labels = torch.zeros(20, dtype=torch.long)

    def outputs(right: list[int]) -> Outputs:
        logits = torch.tensor([[1.0, 0.0] if one else [0.0, 1.0] for one in right])
        return Outputs(logits, labels, labels, labels, labels, labels, batch=2)

    frozen, good = outputs([1] * 20), outputs([1] * 10 + [0] * 5 + [1] * 5)
    assert collapse_began(good, frozen) is None, "five of ten at worst"
    assert collapse_began(outputs([1] * 10 + [0] * 10), frozen) == 16


@pytest.mark.parametrize(("shifts", "last"), [([], "monitor, clean data alone"), (["--shifts", "."], "monitor, line")])
def test_every_estimator_watches_the_domains_of_a_config(shifts, last, capsys):
    keys = overrides(**{"TEST.PROTOCOL": "online", "CORRUPTION.TYPE": "contrast,fog"})
    assert monitor_images.main(["cfgs/digits_c/cattan.yaml", *shifts, *keys]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head == "| estimator | frozen | TENT |"
    names = [row.split("|")[1].strip() for row in rows]
    assert names[3:] == ["AETTA", *dict.fromkeys(["monitor, clean data alone", last])]
    errors = [float(cell.split()[0]) for row in rows for cell in row.split("|")[2:4]]
    assert all(0 <= error <= 100 for error in errors)
