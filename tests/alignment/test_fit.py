"""Streaming fits against scikit-learn, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA, TruncatedSVD

from tta_cattan.alignment import (
    FeatureMoments,
    classifier_subspace,
    fit_subspace,
    orthonormality_error,
)
from tta_cattan.util.errors import UserError


def features(n: int = 700, dim: int = 40, offset: float = 3.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.logspace(1, -1, dim)
    mixing = torch.linalg.qr(torch.randn(dim, dim, generator=generator))[0]
    return (torch.randn(n, dim, generator=generator) * spread) @ mixing + offset


def aligned_difference(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference between two sets of columns up to sign."""
    return float(np.abs(a * np.sign((a * b).sum(0)) - b).max())


def test_equals_sklearn_pca():
    z = features()
    ours = fit_subspace(z.split(64), d=12, center=True)
    theirs = PCA(12, svd_solver="full").fit(z.double().numpy())
    assert aligned_difference(ours.basis.numpy(), theirs.components_.T) < 1e-5
    np.testing.assert_allclose(ours.eigenvalues[:12], theirs.explained_variance_, rtol=1e-5)
    np.testing.assert_allclose(ours.mean, theirs.mean_, rtol=1e-5)


def test_equals_sklearn_truncated_svd():
    z = features()
    ours = fit_subspace(z.split(100), d=12, center=False)
    theirs = TruncatedSVD(12, algorithm="arpack").fit(z.double().numpy())
    assert aligned_difference(ours.basis.numpy(), theirs.components_.T) < 1e-5
    np.testing.assert_allclose(ours.eigenvalues[:12], theirs.singular_values_**2 / len(z), rtol=1e-5)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("batch", [1, 7, 64, 5000])
def test_batches_do_not_matter(center, batch):
    z = features(n=2500)
    whole, streamed = fit_subspace(z, 10, center), fit_subspace(z.split(batch), 10, center)
    assert aligned_difference(streamed.basis.numpy(), whole.basis.numpy()) < 1e-5
    assert orthonormality_error(streamed.basis) < 1e-5
    assert streamed.count == 2500


def test_a_large_offset_does_not_eat_the_precision():
    z = features(n=3000, offset=0.0).double()
    plain = fit_subspace(z, 10)
    moved = fit_subspace((z + 1e4).float().split(256), 10)
    assert aligned_difference(moved.basis.numpy(), plain.basis.numpy()) < 2e-3
    np.testing.assert_allclose(moved.eigenvalues[:10], plain.eigenvalues[:10], rtol=1e-4)


@pytest.mark.parametrize("offset", [3.0, 1e4])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("n", [16, 20, 21, 39, 60])  # 40 features: the rows alone, at the border, the D x D sums
def test_few_samples_equal_numpy(n, center, offset):
    z = features(n=n, offset=offset)
    ours = fit_subspace(z.split(7), center=center)
    rows = z.double().numpy()
    rows = rows - rows.mean(0) if center else rows
    values, vectors = np.linalg.svd(rows, full_matrices=False)[1:]
    most = min(n - center, 40)
    assert ours.basis.is_contiguous(), "files and products want it so"
    assert ours.d == len(ours.eigenvalues) == most and orthonormality_error(ours.basis) < 1e-5
    np.testing.assert_allclose(ours.eigenvalues[:5], values[:5] ** 2 / (n - center), rtol=1e-5)
    assert aligned_difference(ours.basis[:, :5].numpy(), vectors[:5].T) < 1e-5


def test_sums_of_a_drifting_mean_equal_numpy():
    z = features(n=9000) + torch.linspace(0, 30, 9000)[:, None]
    moments = FeatureMoments(40)
    for batch in z.split(700):
        moments.update(batch)
    for center in (True, False):
        rows = z.double().numpy()
        rows = rows - rows.mean(0) if center else rows
        found = moments.products(center).triu().numpy()
        np.testing.assert_allclose(found, np.triu(rows.T @ rows), rtol=1e-5, atol=1e-6 * np.abs(found).max())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_do_not_overflow(dtype):
    z = (features(n=3000) * 20).to(dtype)
    ours, reference = fit_subspace(z, 5), fit_subspace(z.double(), 5)
    np.testing.assert_allclose(ours.eigenvalues[:5], reference.eigenvalues[:5], rtol=1e-4)


def test_memory_does_not_hold_the_samples():
    moments = FeatureMoments(8)
    for _ in range(50):
        moments.update(torch.randn(500, 8))
    held = sum(t.numel() for t in vars(moments).values() if isinstance(t, torch.Tensor))
    assert held + 8 * moments._n_waiting < 8 * 8 + 8 + 1500 * 8


@pytest.mark.parametrize(
    ("z", "d", "words"),
    [
        (torch.randn(10, 30), 12, "1..9"),
        (torch.randn(10, 5), 6, "1..5"),
        (torch.randn(10, 5), 0, "1..5"),
        (torch.ones(50, 5), 2, "same features"),
        (torch.zeros(50, 5), 2, "same features"),
        (torch.randn(1, 5), 1, "at least 2"),
        (torch.randn(10, 5, 2), 2, r"\(n, D\)"),
        ([], 2, "empty"),
    ],
)
def test_refusals(z, d, words):
    with pytest.raises(UserError, match=words):
        fit_subspace(z, d)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_feature_is_named(value):
    z = torch.randn(30, 4)
    z[17, 2] = value
    with pytest.raises(UserError, match="sample 17"):
        fit_subspace(z.split(10), 2)


def test_missing_directions_are_said(caplog):
    z = torch.zeros(50, 6)
    z[:, :2] = torch.randn(50, 2)
    subspace = fit_subspace(z, 4)
    assert orthonormality_error(subspace.basis) < 1e-5
    assert "2 directions only" in caplog.text


def test_classifier_subspace_loses_no_logit():
    weight = torch.randn(10, 64)
    weight[3] = weight[1] - weight[2]
    subspace = classifier_subspace(weight)
    assert subspace.d == 9
    assert orthonormality_error(subspace.basis) < 1e-5
    torch.testing.assert_close(subspace.basis @ (subspace.basis.T @ weight.T), weight.T, rtol=1e-4, atol=1e-5)


def test_classifier_subspace_of_nothing():
    with pytest.raises(UserError, match="zero"):
        classifier_subspace(torch.zeros(3, 5))
