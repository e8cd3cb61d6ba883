"""The agreement of hypotheses, against a loop over its formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tta_cattan.bench.protocols.recovery import agreement, least_confident
from tta_cattan.util.errors import UserError


def loop(probabilities: np.ndarray) -> list[float]:
    """Count the agreements of each sample, hypothesis by hypothesis, as the formula says."""
    n_hypotheses, n, n_classes = probabilities.shape
    scores = []
    for sample in range(n):
        q = 0
        for k in range(n_hypotheses):
            rest = [0.0] * n_classes
            for j in range(n_hypotheses):
                if j != k:
                    for c in range(n_classes):
                        rest[c] += probabilities[j, sample, c] / (n_hypotheses - 1)
            q += rest.index(max(rest)) == int(probabilities[k, sample].argmax())
        scores.append(q / n_hypotheses)
    return scores


@pytest.mark.parametrize("k", [2, 3, 5])
def test_it_is_the_formula(k):
    torch.manual_seed(k)
    probabilities = (3 * torch.randn(k, 200, 4)).softmax(2)
    found = agreement(probabilities)
    assert found.tolist() == pytest.approx(loop(probabilities.double().numpy()))
    assert len(set(found.tolist())) >= min(k, 3), "the samples differ"


def test_known_cases():
    sure = torch.eye(3)
    alike = torch.stack([sure[0], sure[0], sure[0]])[:, None]
    one_apart = torch.stack([sure[0], sure[0], sure[1]])[:, None]
    # The odd one disagrees with the others; each of the others sees a tie, which goes to the first class: theirs.
    assert agreement(alike).tolist() == [1.0]
    assert agreement(one_apart).tolist() == pytest.approx([2 / 3])
    assert agreement(one_apart.flip(0).flip(2)).tolist() == pytest.approx([loop(one_apart.flip(0).flip(2).numpy())[0]])


def test_a_lost_prediction_agrees_with_nobody():
    probabilities = torch.full((3, 2, 4), 0.25)
    probabilities[:, :, 1] = 0.5
    probabilities[2, 0] = float("nan")
    assert agreement(probabilities).tolist() == [0.0, 1.0]


def test_one_hypothesis_is_refused():
    with pytest.raises(UserError, match=r"RECOVERY\.K = 1"):
        agreement(torch.rand(1, 4, 3))


@pytest.mark.parametrize(("n", "fraction", "kept"), [(9, 2 / 3, 6), (10, 2 / 3, 7), (10, 1.0, 10), (3, 0.01, 1)])
def test_the_least_confident_are_kept(n, fraction, kept):
    confidence = torch.rand(n, generator=torch.Generator().manual_seed(n))
    chosen = least_confident(confidence, fraction)
    assert len(chosen) == kept == max(1, math.ceil(round(fraction * n, 9)))
    left = sorted(set(range(n)) - set(chosen.tolist()))
    assert not left or confidence[chosen].max() <= confidence[left].min()


def test_ties_and_lost_confidences_have_an_order():
    confidence = torch.tensor([0.5, float("nan"), 0.5, 0.1, 0.5])
    assert least_confident(confidence, 0.8).tolist() == [1, 3, 0, 2]
