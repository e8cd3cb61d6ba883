"""The classes in the target subspace, against scikit-learn, scipy and a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from tta_cattan.alignment import (
    TargetSamples,
    balancing_offset,
    change_weight,
    class_discriminants,
    fit_class_structure,
    left_out_densities,
    matching_temperature,
    sample_weight,
)


def clusters(per_class=60, d=5, classes=4, spread=0.8, seed=0):
    """Return coordinates and labels of classes with one common covariance, not around zero."""
    rng = np.random.default_rng(seed)
    means = 1.5 * rng.normal(size=(classes, d))
    labels = np.repeat(np.arange(classes), per_class)
    mixing = np.eye(d) + 0.4 * rng.normal(size=(d, d))
    x = means[labels] + spread * rng.normal(size=(len(labels), d)) @ mixing + 3.0
    return torch.from_numpy(x), torch.from_numpy(labels)


def one_hot(labels):
    return torch.nn.functional.one_hot(labels).double()


@pytest.mark.parametrize("shrinkage", [0.1, 0.5, 1.0])
def test_with_labels_it_is_scikit_learns_discriminant_analysis(shrinkage):
    x, labels = clusters()
    x, labels = x[30:], labels[30:]  # the first class has half as many
    weight, offset = class_discriminants(x, one_hot(labels), shrinkage)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(x.numpy(), labels.numpy())
    ours, reference = (x @ weight + offset).log_softmax(1), theirs.predict_log_proba(x.numpy())
    np.testing.assert_allclose(ours.numpy(), reference, rtol=1e-6, atol=1e-6)


def test_shares_weigh_the_samples():
    x, _ = clusters(per_class=10)
    shares = torch.rand(len(x), 3, dtype=torch.float64).softmax(1)
    weight, offset = class_discriminants(x, shares, 0.2)
    means = [sum(s[c] * z for s, z in zip(shares, x, strict=True)) / shares[:, c].sum() for c in range(3)]
    covariance = sum(
        s[c] * torch.outer(z - means[c], z - means[c]) for s, z in zip(shares, x, strict=True) for c in range(3)
    ) / len(x)
    covariance = 0.8 * covariance + 0.2 * torch.eye(5) * covariance.diagonal().mean()
    parts = shares.mean(0).log().numpy()
    expected = parts + np.stack([multivariate_normal(m, covariance).logpdf(x) for m in means], 1)
    ours = (x @ weight + offset).numpy()
    np.testing.assert_allclose(ours - ours[:, :1], expected - expected[:, :1], rtol=1e-8, atol=1e-8)


def test_both_opinions_together_beat_the_network_alone():
    x, labels = clusters()
    torch.manual_seed(1)
    logits = one_hot(labels) + torch.randn(len(x), 4, dtype=torch.float64)
    weight, offset, temperature = fit_class_structure(x, logits, 0.9)
    joint = temperature * (logits + x @ weight + offset)
    before, after = ((y.argmax(1) == labels).double().mean().item() for y in (logits, joint))
    assert before < 0.75 and after > before + 0.1
    confidence = [y.softmax(1).amax(1).mean().item() for y in (logits, joint)]
    assert confidence[1] == pytest.approx(confidence[0], abs=1e-6)


def test_each_sample_is_judged_by_the_others():
    x, _ = clusters(per_class=6)
    x = x - x.mean(0)
    shares = torch.rand(len(x), 3, dtype=torch.float64).softmax(1)
    shares[4] = torch.tensor([0.0, 0.0, 1.0])
    ours = left_out_densities(x, shares, 0.2).numpy()
    counts = shares.sum(0)
    means = shares.T @ x / counts[:, None]
    covariance = sum(shares[i, c] * torch.outer(z - means[c], z - means[c]) for i, z in enumerate(x) for c in range(3))
    covariance = covariance / len(x)
    covariance = 0.8 * covariance + 0.2 * torch.eye(5) * covariance.diagonal().mean()
    for i, z in enumerate(x):
        rest, weights = torch.cat([x[:i], x[i + 1 :]]), torch.cat([shares[:i], shares[i + 1 :]])
        expected = np.array([
            np.log(weights[:, c].sum() / len(x))
            + multivariate_normal((weights[:, c] @ rest) / weights[:, c].sum(), covariance).logpdf(z)
            for c in range(3)
        ])  # fmt: skip
        np.testing.assert_allclose(ours[i] - ours[i, 0], expected - expected[0], rtol=1e-4, atol=1e-4)


def test_a_class_of_one_sample_does_not_keep_it():
    x, labels = clusters(classes=2, d=40)
    x = x - x.mean(0)
    shares = torch.cat([one_hot(labels), torch.zeros(len(x), 1)], 1).double()
    shares[0] = torch.tensor([0.0, 0.0, 1.0])  # one of the first class has a third to itself
    weight, offset = class_discriminants(x, shares, 0.3)
    assert (x @ weight + offset)[0].softmax(0)[2] > 0.5, "its own mean is nearest to it"
    assert left_out_densities(x, shares, 0.3)[0].softmax(0)[2] < 1e-3


@pytest.mark.parametrize("level", [0.0, 0.6])
def test_the_rounds_are_expectation_maximisation(level):
    x, labels = clusters(per_class=12)
    logits = one_hot(labels) + torch.randn(len(x), 4, generator=torch.Generator().manual_seed(2)).double()
    weight, offset, _ = fit_class_structure(x, logits, 0.7, shrinkage=0.4, level=level, rounds=3)
    centred, shares = x - x.mean(0), logits.softmax(1)
    for _ in range(2):
        joint = logits + 0.7 * left_out_densities(centred, shares, 0.4)
        shares = (joint + level * balancing_offset(joint)).softmax(1)
    g, b = class_discriminants(centred, shares, 0.4)
    joint = logits + 0.7 * (centred @ g + b)
    torch.testing.assert_close(logits + x @ weight + offset, joint + level * balancing_offset(joint))


def test_the_offset_balances():
    logits = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) + torch.tensor([3.0, 0.0, 0.0, -2.0])
    parts = (logits + balancing_offset(logits)).softmax(1).mean(0)
    torch.testing.assert_close(parts, torch.full((4,), 0.25), rtol=1e-3, atol=0)
    assert balancing_offset(torch.cat([logits, torch.full((50, 1), -1e4)], 1)).isfinite().all()


def test_levelling_finds_classes_that_the_network_neglects():
    x, labels = clusters()
    logits = one_hot(labels) + torch.randn(len(x), 4, generator=torch.Generator().manual_seed(1)).double()
    logits[:, 2] -= 2.5  # hardly ever predicted
    right = {}
    for level in (0.0, 0.5):
        weight, offset, _ = fit_class_structure(x, logits, 0.3, level=level)
        right[level] = ((logits + x @ weight + offset).argmax(1) == labels).double().mean().item()
    assert right[0.5] > right[0.0] + 0.02


def test_the_classes_count_with_samples_and_with_what_changed():
    assert sample_weight(300, 10, doubt=10) == pytest.approx(300 / 400) and sample_weight(3, 10, doubt=0) == 1
    assert change_weight(0.05, calm=0.05) == pytest.approx(0.5)
    assert change_weight(0.0, calm=0.05) == 0.0 and change_weight(0.0, calm=0.0) == 1.0
    weights = [change_weight(c, calm=0.05) for c in (0.0, 0.01, 0.1, 0.5, 1.0)]
    assert weights == sorted(weights) and weights[-1] < 1


def test_with_no_weight_the_network_decides():
    x, labels = clusters(per_class=1)
    logits = one_hot(labels)
    weight, offset, temperature = fit_class_structure(x, logits, 0.0)
    assert not weight.any() and not offset.any() and temperature == 1.0


def test_a_class_that_nobody_is_taken_for_stays_finite():
    x, labels = clusters(classes=2)
    logits = torch.cat([50 * one_hot(labels), torch.full((len(x), 1), -1e4)], 1)
    weight, offset, temperature = fit_class_structure(x, logits, 0.9)
    assert weight.isfinite().all() and offset.isfinite().all() and 0 < temperature <= 1
    same = torch.ones(6, 5)  # no spread at all
    assert fit_class_structure(same, torch.randn(6, 3), 0.9)[0].isfinite().all()


def test_the_temperature_never_sharpens():
    logits = torch.tensor([[0.1, 0.0], [0.0, 0.2]])
    assert matching_temperature(logits, 0.99) == 1.0
    t = matching_temperature(10 * logits, 0.6)
    assert (10 * t * logits).softmax(1).amax(1).mean().item() == pytest.approx(0.6, abs=1e-6)


def test_with_fewer_than_two_samples_per_class_there_are_no_classes():
    generator = torch.Generator().manual_seed(0)
    features, logits = torch.randn(39, 12, generator=generator), torch.randn(39, 20, generator=generator)
    samples = TargetSamples()
    samples.add(logits, features)
    before = logits.argmax(1).roll(1)
    classes, changed = samples.classes([before], calm=0.0)
    assert classes is None and changed == (before != logits.argmax(1)).double().mean().item()
    samples.add(logits[:1], features[:1])
    assert samples.classes([before, before[:1]], calm=0.0)[0] is not None
