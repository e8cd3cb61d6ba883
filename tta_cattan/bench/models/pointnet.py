"""PointNet with PointDAN's self-adaptive nodes and the batch normalisation that CATTAn's authors added."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FEATURES = 1024
_SMALLEST = 1e-10  # squared distance below which two points are one


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """``||a_i - b_j||^2`` for a (B x S x 3) and b (B x N x 3), as B x S x N.

    Note: computed from the differences; ``||a||^2 + ||b||^2 - 2 a b`` loses the digits that tell neighbours apart.
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

    Note: if fewer are inside, the first of them is repeated; if none is, the nearest point is used.
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


class PointConv(nn.Sequential):
    """The same linear map at every point (B x C x N x 1), batch normalisation, ReLU."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__(nn.Conv2d(channels_in, channels, 1), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


class TransformNet(nn.Module):
    """Predicts one ``k x k`` matrix per cloud from all its points; initially the identity."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(PointConv(k, 64), PointConv(64, 128), PointConv(128, FEATURES))
        self.hidden = nn.Sequential(
            nn.Linear(FEATURES, 512),
            nn.BatchNorm1d(512),
            nn.LeakyReLU(),
            nn.Linear(512, 256),
            nn.BatchNorm1d(256),
            nn.LeakyReLU(),
        )
        self.matrix = nn.Linear(256, k * k)
        nn.init.zeros_(self.matrix.weight)
        nn.init.zeros_(self.matrix.bias)
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B x k x N x 1) with every point multiplied by its cloud's matrix."""
        pooled = self.convs(x).flatten(2).max(2).values
        matrix = self.matrix(self.hidden(pooled)).view(-1, self.k, self.k)
        matrix = matrix + torch.eye(self.k, device=x.device).to(matrix.dtype)  # torch 2.1 has no eye in bfloat16
        return (matrix.mT @ x.squeeze(-1)).unsqueeze(-1)


class AdaptiveNodes(nn.Module):
    """PointDAN's node module: farthest points, displaced by their surroundings, gather and spread local features.

    A node at ``x_0`` moves by ``mean_i tanh(w (f_i - f_0)) * (x_i - x_0)`` over the points in a ball; its feature is
    the maximum over its nearest points; every point receives the interpolation of the three nodes nearest to it.
    """

    def __init__(self, channels: int, nodes: int = 64, neighbours: int = 64, radius: float = 0.3) -> None:
        super().__init__()
        self.offset = nn.Conv2d(channels, 3, 1, bias=False)
        self.local = PointConv(channels, channels)
        self.nodes, self.neighbours, self.radius = nodes, neighbours, radius

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        """Return features (B x 2C x N x 1): the input's, and those interpolated from the nodes."""
        nodes = self.place(x, points)
        local = self.local(x).squeeze(-1).mT
        node_features = gather_points(local, nearest_points(points, nodes, self.neighbours)).max(2).values
        spread = interpolate_features(points, nodes, node_features)
        return torch.cat([x, spread.mT.unsqueeze(-1)], 1)

    def place(self, x: Tensor, points: Tensor) -> Tensor:
        """Return the positions of the nodes (B x S x 3)."""
        features = x.squeeze(-1).mT
        seeds = farthest_points(points, self.nodes)
        centres = gather_points(points, seeds)
        group = ball_query(points, centres, self.radius, self.neighbours)
        difference = gather_points(features, group) - gather_points(features, seeds)[:, :, None]
        semantic = self.offset(difference.permute(0, 3, 1, 2)).tanh().permute(0, 2, 3, 1)
        offsets = semantic * (gather_points(points, group) - centres[:, :, None])
        return centres + offsets.mean(2)


class PointNet(nn.Module):
    """Clouds of any number of points (B x 3 x N) to logits, through a 1024-d feature and one linear layer.

    Note: each of the four ``norm`` layers follows a block that normalises already, and ``feature_norm`` the maximum
    over the points: these are the layers that CATTAn's authors added, and the only ones that their code adapts.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.input_transform = TransformNet(3)
        self.conv1, self.norm1 = PointConv(3, 64), nn.BatchNorm2d(64)
        self.conv2, self.norm2 = PointConv(64, 64), nn.BatchNorm2d(64)
        self.feature_transform = TransformNet(64)
        self.adaptive_nodes = AdaptiveNodes(64)
        self.conv3, self.norm3 = PointConv(128, 128), nn.BatchNorm2d(128)
        self.conv4, self.norm4 = PointConv(128, FEATURES), nn.BatchNorm2d(FEATURES)
        self.feature_norm = nn.BatchNorm1d(FEATURES)
        self.fc = nn.Linear(FEATURES, num_classes)

    def forward(self, clouds: Tensor) -> Tensor:
        points = clouds.mT
        x = self.input_transform(clouds.unsqueeze(-1))
        x = self.norm2(self.conv2(self.norm1(self.conv1(x))))
        x = self.adaptive_nodes(self.feature_transform(x), points)
        x = self.norm4(self.conv4(self.norm3(self.conv3(x))))
        return self.fc(self.feature_norm(x.flatten(2).max(2).values))


class PlainPointNet(nn.Module):
    """A PointNet without transformation networks, named as in a public checkpoint, which expects y up."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        widths = (3, 64, 64, 64, 128, FEATURES)
        self.feature_model = nn.Module()
        for i in range(1, len(widths)):
            self.feature_model.add_module(f"conv{i}", nn.Conv1d(widths[i - 1], widths[i], 1))
            self.feature_model.add_module(f"bn{i}", nn.BatchNorm1d(widths[i]))
        self.linear1, self.bn1 = nn.Linear(FEATURES, 512), nn.BatchNorm1d(512)
        self.linear2, self.bn2 = nn.Linear(512, 256), nn.BatchNorm1d(256)
        self.linear3 = nn.Linear(256, num_classes)

    def forward(self, clouds: Tensor) -> Tensor:
        """Return the logits of clouds (B x 3 x N) that lie in the unit sphere, z up."""
        x = torch.stack([-clouds[:, 0], clouds[:, 2], clouds[:, 1]], 1)
        layers = list(self.feature_model.children())
        for conv, norm in zip(layers[::2], layers[1::2], strict=True):
            x = norm(conv(x)).relu()
        x = self.bn1(self.linear1(x.max(2).values)).relu()
        return self.linear3(self.bn2(self.linear2(x)).relu())
