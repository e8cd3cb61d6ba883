"""The stability rule against a loop from the formula."""

from __future__ import annotations

import math

import pytest
import torch

from tta_cattan.alignment import select_dimension, stability_bound, stability_curve
from tta_cattan.util.errors import UserError


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


@pytest.mark.parametrize("n", [20, 900])
def test_the_curve_is_what_the_rule_compares(n):
    generator = torch.Generator().manual_seed(n)
    source, target = (torch.rand(n + k, generator=generator).sort(descending=True).values for k in (0, 5))
    curve = stability_curve(source, target, 300, epsilon=1e5)
    d = [int(value) for value in curve["d"]]
    assert d[0] == 1 and d[-1] == n - 1 and sorted(set(d)) == d and len(d) <= 128
    assert len(d) == n - 1 if n < 128 else len(d) > 60
    for place, value in enumerate(d):
        assert curve["source"][place] == pytest.approx((source[value - 1] - source[value]).item(), rel=1e-3, abs=1e-7)
        assert curve["target"][place] == pytest.approx((target[value - 1] - target[value]).item(), rel=1e-3, abs=1e-7)
        assert curve["bound"][place] == pytest.approx(
            stability_bound(torch.tensor(value), 300, epsilon=1e5).item(), rel=1e-3
        )
    alone = stability_curve(None, target, 300)
    assert "source" not in alone and alone["d"][-1] == n + 4
