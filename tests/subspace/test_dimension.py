"""The stability rule against a loop from the formula."""

from __future__ import annotations

import math

import pytest
import torch

from tta_cattan.errors import UserError
from tta_cattan.subspace import select_dimension, stability_bound


def rule_loop(source, target, n, delta, epsilon) -> int:
    best = 0
    for d in range(1, min(len(source), len(target))):
        bound = (1 + math.sqrt(math.log(2 / delta) / 2)) * 16 * d**1.5 / (epsilon * math.sqrt(n))
        gap = min(source[d - 1] - source[d], target[d - 1] - target[d])
        if gap >= bound:
            best = d
    return best


@pytest.mark.parametrize("epsilon", [1e3, 1e4, 1e6])
@pytest.mark.parametrize("seed", range(5))
def test_equals_the_loop(seed, epsilon):
    generator = torch.Generator().manual_seed(seed)
    source, target = (
        torch.rand(40, generator=generator, dtype=torch.float64).sort(descending=True).values * 5 for _ in range(2)
    )
    expected = rule_loop(source.tolist(), target[:30].tolist(), 500, 0.1, epsilon)
    assert expected > 0
    assert select_dimension(source, target[:30], 500, epsilon=epsilon) == expected


def test_bound_of_the_papers_setting():
    # OfficeHome A->C has 4,365 target images; the figure's bound at d = 800 is about 0.012.
    assert stability_bound(torch.tensor(800), 4365).item() == pytest.approx(0.01219, rel=1e-3)


def test_the_rule_is_not_monotone():
    # A gap that closes and opens again: the largest d counts, not the first failure.
    source = torch.tensor([5.0, 4.0, 4.0, 1.0, 1.0])
    assert select_dimension(source, source, 1000) == 3


def test_no_dimension():
    with pytest.raises(UserError, match="set CATTAN"):
        select_dimension(torch.ones(5), torch.ones(5), 100)
    with pytest.raises(UserError, match="neighbouring"):
        select_dimension(torch.ones(1), torch.ones(5), 100)
    with pytest.raises(UserError, match="n_target = 0"):
        select_dimension(torch.ones(4), torch.ones(5), 0)
