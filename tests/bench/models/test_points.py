"""The point operations agree with loops over numpy arrays that are written from their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tta_cattan.bench.models.pointnet import (
    ball_query,
    farthest_points,
    gather_points,
    interpolate_features,
    nearest_points,
    squared_distances,
)


def clouds(batch=3, n=40, seed=0):
    return torch.randn(batch, n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def distance(p, q):
    return sum((a - b) ** 2 for a, b in zip(p, q, strict=True))


def test_squared_distances():
    a, b = clouds(n=5), clouds(n=7, seed=1)
    expected = [[[distance(p, q) for q in two] for p in one] for one, two in zip(a.numpy(), b.numpy(), strict=True)]
    np.testing.assert_allclose(squared_distances(a, b).numpy(), expected, rtol=1e-12)


def test_squared_distances_of_far_neighbours_keep_their_digits():
    a = torch.tensor([[[1000.0, 0, 0]]])
    assert squared_distances(a, a + torch.tensor([0.01, 0, 0])).item() == pytest.approx(1e-4, rel=2e-2)


def slow_farthest(cloud, n):
    mean = cloud.mean(0)
    chosen = [max(range(len(cloud)), key=lambda i: distance(cloud[i], mean))]
    while len(chosen) < n:
        chosen.append(max(range(len(cloud)), key=lambda i: min(distance(cloud[i], cloud[j]) for j in chosen)))
    return chosen


@pytest.mark.parametrize("n", [1, 2, 17, 40])
def test_farthest_points(n):
    points = clouds()
    assert farthest_points(points, n).tolist() == [slow_farthest(cloud, n) for cloud in points.numpy()]


def test_farthest_points_do_not_depend_on_the_order():
    points = clouds()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(5))
    shuffled = order[farthest_points(points[:, order], 12)]
    assert torch.equal(shuffled, farthest_points(points, 12))


def test_more_farthest_points_than_points_are_still_points():
    chosen = farthest_points(clouds(n=4), 9)
    assert chosen.shape == (3, 9) and all(set(row[:4]) == {0, 1, 2, 3} for row in chosen.tolist())
    assert chosen.max() < 4


def slow_ball(cloud, centre, radius, k):
    inside = [i for i in range(len(cloud)) if distance(cloud[i], centre) <= radius**2][:k]
    if not inside:
        inside = [min(range(len(cloud)), key=lambda i: distance(cloud[i], centre))]
    return inside + [inside[0]] * (k - len(inside))


@pytest.mark.parametrize("radius", [0.01, 0.8, 50.0])
@pytest.mark.parametrize("k", [1, 6, 64])
def test_ball_query(radius, k):
    points, centres = clouds(), clouds(n=9, seed=1)
    expected = [
        [slow_ball(cloud, centre, radius, k) for centre in some]
        for cloud, some in zip(points.numpy(), centres.numpy(), strict=True)
    ]
    assert ball_query(points, centres, radius, k).tolist() == expected


@pytest.mark.parametrize("k", [1, 5, 99])
def test_nearest_points(k):
    points, centres = clouds(), clouds(n=9, seed=1)
    expected = [
        [sorted(range(40), key=lambda i, cloud=cloud, centre=centre: distance(cloud[i], centre))[:k] for centre in some]
        for cloud, some in zip(points.numpy(), centres.numpy(), strict=True)
    ]
    assert nearest_points(points, centres, k).tolist() == expected


@pytest.mark.parametrize("shape", [(3, 6), (3, 6, 4)])
def test_gather_points(shape):
    generator = torch.Generator().manual_seed(2)
    features, indices = torch.randn(3, 11, 5, generator=generator), torch.randint(0, 11, shape, generator=generator)
    expected = np.stack([features[b].numpy()[indices[b].numpy()] for b in range(3)])
    np.testing.assert_array_equal(gather_points(features, indices).numpy(), expected)


def slow_interpolation(p, nodes, features, k):
    near = sorted(range(len(nodes)), key=lambda i: distance(p, nodes[i]))[:k]
    weights = [1 / max(distance(p, nodes[i]), 1e-10) for i in near]
    return sum(w * features[i] for w, i in zip(weights, near, strict=True)) / sum(weights)


@pytest.mark.parametrize("nodes_n", [2, 8])
def test_interpolate_features(nodes_n):
    points, nodes, features = clouds(), clouds(n=nodes_n, seed=1), clouds(n=nodes_n, seed=2)
    nodes[:, 0] = points[:, 7]  # a point at a node has the node's feature
    found = interpolate_features(points, nodes, features)
    expected = [
        [slow_interpolation(p, some.numpy(), values.numpy(), 3) for p in cloud.numpy()]
        for cloud, some, values in zip(points, nodes, features, strict=True)
    ]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
    torch.testing.assert_close(found[:, 7], features[:, 0], rtol=0, atol=1e-6)


def test_the_interpolation_has_the_gradient_of_its_formula():
    points, nodes, features = clouds(2, 5), clouds(2, 4, seed=1), clouds(2, 4, seed=2)
    assert torch.autograd.gradcheck(
        lambda q, f: interpolate_features(points, q, f), (nodes.requires_grad_(), features.requires_grad_())
    )
