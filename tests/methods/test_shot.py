"""SHOT's pseudo-labels and loss against numpy versions of their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import log_softmax, softmax
from small_networks import build, target_batches

from tta_cattan.methods.shot import pseudo_labels


def numpy_labels(features, logits, rounds):
    """Centroids weighted by softmax, then by the labels; the nearest by cosine distance."""
    z = np.concatenate([features, np.ones((len(features), 1))], 1)
    z = z / np.linalg.norm(z, axis=1, keepdims=True)
    weights = softmax(logits, 1)
    for _ in range(rounds):
        classes = np.unique(weights.argmax(1))  # SHOT leaves out classes that no sample is predicted as
        centroids = (weights.T @ z)[classes] / weights.sum(0)[classes, None]
        labels = classes[cdist(z, centroids, "cosine").argmin(1)]
        weights = np.eye(logits.shape[1])[labels]
    return labels


def in_batches(features, logits):
    """Yield the samples in batches of unequal sizes."""
    yield from zip(features.split([7, len(features) - 7]), logits.split([7, len(features) - 7]), strict=True)


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_pseudo_labels_equal_the_definition(rounds, seed):
    rng = np.random.default_rng(seed)
    centres = 2 * rng.normal(size=(8, 16))
    truth = rng.integers(0, 7, 120)  # class 7 is empty after the first round
    features = centres[truth] + rng.normal(size=(120, 16))
    logits = np.eye(8)[rng.integers(0, 7, 120)] * 2 + np.eye(8)[truth] * 2 + rng.normal(size=(120, 8))
    logits[:, 7] -= 3
    assert not (logits.argmax(1) == 7).any(), "no sample is predicted as class 7"
    labels = pseudo_labels(in_batches(torch.from_numpy(features), torch.from_numpy(logits)), rounds)
    expected = numpy_labels(features, logits, rounds)
    assert labels.tolist() == expected.tolist()
    assert (labels.numpy() != logits.argmax(1)).any(), "the labels are only the predictions"


def test_rounds_matter():
    rng = np.random.default_rng(1)
    features, logits = torch.from_numpy(rng.normal(size=(200, 6))), torch.from_numpy(3 * rng.normal(size=(200, 5)))
    one, two = (pseudo_labels(in_batches(features, logits), rounds) for rounds in (1, 2))
    assert not torch.equal(one, two)


def test_a_sample_with_nan_does_not_spoil_the_labels_of_the_others():
    torch.manual_seed(0)
    features, logits = torch.randn(60, 6), 3 * torch.randn(60, 5)
    expected = pseudo_labels([(features[1:], logits[1:])])
    features[0] = logits[0] = float("nan")
    assert torch.equal(pseudo_labels(in_batches(features, logits))[1:], expected)


def test_offline_loss_uses_the_label_of_each_sample():
    method, batches = build("shot", lambda_pl=0.3), target_batches()
    method.start_epoch(batches)
    norm = build("norm")
    features, logits = [], []
    for _, x in batches:
        logits.append(norm.predict(x).numpy())
        norm.model.fc.register_forward_hook(lambda _, args, __: features.append(args[0].numpy()))
        norm.predict(x)
        norm.model.fc._forward_hooks.clear()
    labels = numpy_labels(np.concatenate(features), np.concatenate(logits), 2)
    assert method.target.known == dict(enumerate(labels.tolist()))
    indices = torch.tensor([17, 3, 30, 8])
    x = torch.cat([x for _, x in batches])[indices]
    y, loss = method.loss_calculation(x, indices)
    y = y.detach().numpy()
    p, mean = softmax(y, 1), softmax(y, 1).mean(0)
    information = -(p * np.log(p)).sum(1).mean() + (mean * np.log(mean)).sum()
    expected = information - 0.3 * log_softmax(y, 1)[np.arange(4), labels[indices]].mean()
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_labels_are_refreshed_every_epoch():
    method, batches = build("shot", lr=0.1), target_batches()
    method.start_epoch(batches)
    first = dict(method.target.known)
    for _ in range(5):
        for indices, x in batches:
            method(x, indices)
    assert method.target.known == first
    method.start_epoch(batches)
    assert method.target.known != first and method.target.known.keys() == first.keys()


def test_online_centroids_are_summed_over_the_batches():
    method, batches = build("shot", lr=0.0), target_batches()
    for _, x in batches:
        method(x)
    halves = build("shot", lr=0.0)
    for _, x in batches[:2]:
        halves(x)
    assert method.target.sums.norm() > 2 * halves.target.sums.norm()
    assert not method.target.known


def test_reset_drops_the_labels_and_the_centroids():
    method, batches = build("shot"), target_batches()
    method.start_epoch(batches)
    method(batches[0][1])
    assert method.target.known and method.target.sums is not None
    method.reset()
    assert not method.target.known and method.target.sums is None
