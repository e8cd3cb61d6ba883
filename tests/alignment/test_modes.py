"""One cloud of points or two, against scikit-learn's mixture."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

from tta_cattan.alignment import modes


def cloud(distance, n=512, dim=12, seed=0):
    rng = np.random.default_rng(seed)
    side = rng.random(n) < 0.4
    spread = rng.normal(size=(dim, dim)) / dim + np.eye(dim)
    return torch.from_numpy(rng.normal(size=(n, dim)) @ spread + distance * side[:, None]).float(), side


def test_two_clouds_are_told_apart_and_one_is_not():
    assert modes.gain_of_two(cloud(2.0)[0]) > 0.5
    for seed in range(5):
        assert modes.gain_of_two(cloud(0.0, seed=seed)[0]) < 0.05


def test_a_mixture_does_not_drift_and_phases_do():
    for seed in range(5):
        rows, side = cloud(2.0, seed=seed)
        assert 0.5 < modes.drift(rows, 64) < 1.5
        assert modes.drift(torch.cat([rows[side], rows[~side]]), 64) > 20
    x = rows.double().numpy()
    means = np.stack([block.mean(0) for block in np.split(x, 8)])
    assert modes.drift(rows, 64) == pytest.approx(64 * means.var(0, ddof=1).sum() / x.var(0, ddof=1).sum(), rel=1e-4)


def test_the_likelihood_is_that_of_scikit_learn():
    rows, _ = cloud(1.5)
    x = rows.double() - rows.double().mean(0)
    for count in (1, 2):
        theirs = GaussianMixture(count, covariance_type="tied", reg_covar=modes._RIDGE, n_init=3, random_state=0)
        ours = modes._log_density(x, *modes._fit(x, count)).mean().item()
        assert ours == pytest.approx(theirs.fit(x.numpy()).score(x.numpy()), abs=0.02)


def test_an_offset_and_the_order_of_the_rows_do_not_matter():
    rows, _ = cloud(2.0)
    assert modes.gain_of_two(rows) == pytest.approx(modes.gain_of_two(rows + 100), abs=1e-3)


def test_k_means_is_as_good_as_that_of_scikit_learn():
    rows, _ = cloud(2.0)
    found = modes.k_means(rows, 4)
    within = sum((rows[found == k] - rows[found == k].mean(0)).square().sum().item() for k in range(4))
    theirs = KMeans(4, n_init=10, random_state=0).fit(rows.numpy()).inertia_
    assert within < 1.03 * theirs


def test_k_means_of_fewer_points_than_clusters_leaves_clusters_empty():
    assert set(modes.k_means(torch.zeros(5, 2), 3).tolist()) <= {0, 1, 2}
