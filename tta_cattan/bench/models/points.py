"""Operations on batches of point clouds: pure functions on (B x N x 3) coordinates, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

_SMALLEST = 1e-10  # squared distance below which two points are one


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """``||a_i - b_j||^2`` for a (B x S x 3) and b (B x N x 3), as B x S x N.

    Note: the differences are formed; ``||a||^2 + ||b||^2 - 2 a b`` loses the digits that tell neighbours apart.
    """
    return (a[:, :, None] - b[:, None]).square().sum(-1)


@torch.no_grad()
def farthest_points(points: Tensor, n: int) -> Tensor:
    """Return the indices (B x n) of points each of which is the farthest from those before it.

    Note: the first is the farthest from the centroid, so that the same cloud always has the same points, whatever
    their order (PointDAN draws it at random). With n > N the indices repeat.
    """
    batch = torch.arange(len(points), device=points.device)
    distance = (points - points.mean(1, keepdim=True)).square().sum(-1)
    chosen = [distance.argmax(1)]
    distance = torch.full_like(distance, float("inf"))
    while len(chosen) < n:
        last = points[batch, chosen[-1]]
        distance = torch.minimum(distance, (points - last[:, None]).square().sum(-1))
        chosen.append(distance.argmax(1))
    return torch.stack(chosen[:n], 1)


@torch.no_grad()
def ball_query(points: Tensor, centres: Tensor, radius: float, k: int) -> Tensor:
    """Return the indices (B x S x k) of the first k points within ``radius`` of each centre.

    Note: where fewer are inside, the first of them is repeated; where none is, the nearest point stands in.
    """
    distances = squared_distances(centres, points)
    n = points.shape[1]
    numbers = torch.arange(n, device=points.device).expand_as(distances)
    inside = torch.where(distances <= radius**2, numbers, n)
    found = inside.sort(-1).values[..., : min(k, n)]
    first = torch.where(found[..., :1] == n, distances.argmin(-1, keepdim=True), found[..., :1])
    found = torch.where(found == n, first, found)
    return torch.cat([found, first.expand(*first.shape[:-1], k - found.shape[-1])], -1)


@torch.no_grad()
def nearest_points(points: Tensor, centres: Tensor, k: int) -> Tensor:
    """Return the indices (B x S x min(k, N)) of the points nearest to each centre, the nearest first."""
    return squared_distances(centres, points).topk(min(k, points.shape[1]), largest=False).indices


def gather_points(features: Tensor, indices: Tensor) -> Tensor:
    """Return ``features[b, indices[b, ...]]``: from B x N x C and B x ... indices to B x ... x C."""
    channels = features.shape[-1]
    flat = indices.reshape(len(indices), -1, 1).expand(-1, -1, channels)
    return features.gather(1, flat).reshape(*indices.shape, channels)


def interpolate_features(points: Tensor, nodes: Tensor, node_features: Tensor, k: int = 3) -> Tensor:
    """Carry features of nodes (B x S x C) to points (B x N x C): ``f(p) = sum_i w_i f_i / sum_i w_i``.

    The sum is over the k nodes nearest to p, with ``w_i = 1 / max(||p - q_i||^2, 1e-10)``.
    """
    neighbours = nearest_points(nodes, points, k)
    distances = (points[:, :, None] - gather_points(nodes, neighbours)).square().sum(-1)
    weights = distances.clamp_min(_SMALLEST).reciprocal()
    weights = weights / weights.sum(-1, keepdim=True)
    return (gather_points(node_features, neighbours) * weights[..., None]).sum(2)
