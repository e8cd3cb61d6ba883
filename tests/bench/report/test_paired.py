"""The comparison of two methods against scipy, a bootstrap and a loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, bootstrap

from tta_cattan.bench.report.pairs import mcnemar, paired_difference


def differences(n, only_first, only_second, seed=0):
    """Return n shuffled differences of which so many are 1 and -1."""
    values = np.zeros(n)
    values[:only_first], values[only_first : only_first + only_second] = 1, -1
    return np.random.default_rng(seed).permutation(values)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_binomial_test(b, c):
    # By the definition: half of the probability of what was seen, and all of what is further from the middle.
    n = b + c
    p = [binom.pmf(k, n, 0.5) for k in range(n + 1)]
    further = sum(p[k] for k in range(n + 1) if abs(2 * k - n) > abs(b - c))
    seen = sum(p[k] for k in range(n + 1) if abs(2 * k - n) == abs(b - c))
    assert mcnemar(b, c) == pytest.approx(further + seen / 2 if n else 1.0, abs=1e-9)


@pytest.mark.parametrize(("b", "c"), [(60, 30), (35, 29), (10, 90)])
def test_one_group_has_the_wald_interval_of_paired_proportions(b, c):
    n = 2000
    found = paired_difference([(np.arange(n), differences(n, b, c))])
    reach = 1.959964 * np.sqrt(b + c - (b - c) ** 2 / n) / n
    assert (found.mean, found.images) == (pytest.approx((b - c) / n), n)
    assert (found.low, found.high) == pytest.approx(((b - c) / n - reach, (b - c) / n + reach), rel=1e-3)


def test_the_interval_is_the_bootstraps():
    # 15 corruptions of the same 400 images: an image that is hard under one is hard under the others.
    rng = np.random.default_rng(1)
    hard = rng.normal(size=400)
    groups = [
        np.sign(np.where(np.abs(hard + rng.normal(size=400)) > 1.5, rng.choice([-1, 1, 1], 400), 0)) for _ in range(15)
    ]
    found = paired_difference([(np.arange(400), group) for group in groups])
    per_image = np.mean(groups, axis=0)
    resampled = bootstrap((per_image,), np.mean, n_resamples=9999, method="percentile", random_state=0)
    low, high = resampled.confidence_interval
    assert found.mean == pytest.approx(per_image.mean())
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.1 * (high - low))
    assert found.images == 400


def test_groups_of_other_sizes_count_alike():
    sizes = (50, 200)
    groups = [(np.arange(n) + 1000 * n, differences(n, n // 5, n // 10)) for n in sizes]
    found = paired_difference(groups)
    assert found.mean == pytest.approx(np.mean([d.mean() for _, d in groups]))
    variance = sum(d.var() / len(d) for _, d in groups) / 4  # no image in both: independent
    assert found.high - found.mean == pytest.approx(1.959964 * np.sqrt(variance * 250 / 249), rel=1e-6)


def test_a_small_lead_is_no_win_and_a_large_one_is():
    n = 2000  # 0.3 points: 6 images more, of 80 on which the methods differ
    for only, outcome in (((43, 37), "open"), ((70, 10), "won"), ((10, 70), "lost")):
        assert paired_difference([(np.arange(n), differences(n, *only))]).outcome == outcome


def test_one_image_and_equal_methods_decide_nothing():
    assert paired_difference([(np.array([3]), np.array([1]))]).outcome == "open"
    assert paired_difference([(np.arange(9), np.zeros(9))]).outcome == "open"
