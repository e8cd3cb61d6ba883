"""Which layers are adapted, and whose statistics they use in the three modes."""

from __future__ import annotations

import copy

import pytest
import torch
from small_networks import build, network, run, target_batches
from torch import nn

from tta_cattan.network.normalization import affine_parameters, is_normalization, statistics_layers


@pytest.mark.parametrize(
    ("layer", "kinds"),
    [
        (nn.BatchNorm1d(4), ["weight", "bias"]),
        (nn.BatchNorm2d(4), ["weight", "bias"]),
        (nn.BatchNorm3d(4), ["weight", "bias"]),
        (nn.SyncBatchNorm(4), ["weight", "bias"]),
        (nn.LayerNorm(4), ["weight", "bias"]),
        (nn.LayerNorm((4, 3)), ["weight", "bias"]),
        (nn.GroupNorm(2, 4), ["weight", "bias"]),
        (nn.InstanceNorm1d(4, affine=True), ["weight", "bias"]),
        (nn.InstanceNorm2d(4, affine=True), ["weight", "bias"]),
        (nn.InstanceNorm3d(4, affine=True), ["weight", "bias"]),
        (nn.BatchNorm2d(4, affine=False), []),
        (nn.LayerNorm(4, elementwise_affine=False), []),
        (nn.GroupNorm(2, 4, affine=False), []),
        (nn.InstanceNorm2d(4), []),
        (nn.LocalResponseNorm(2), []),
        (nn.Conv2d(4, 4, 1), []),
        (nn.Linear(4, 4), []),
        (nn.PReLU(4), []),
    ],
    ids=str,
)
def test_layers_of_torch(layer, kinds):
    assert affine_parameters(nn.Sequential(nn.Conv2d(1, 1, 1), layer))[1] == [f"1.{kind}" for kind in kinds]
    assert affine_parameters(layer)[1] == kinds


@pytest.mark.parametrize(
    "name",
    ["BatchNormAct2d", "GroupNormAct", "GroupNorm1", "LayerNorm", "LayerNorm2d", "LayerNormAct2d", "RmsNorm",
     "EvoNorm2dB0", "EvoNorm2dS0", "FilterResponseNormTlu2d"],
)  # fmt: skip
def test_layers_of_timm(name):
    layers = pytest.importorskip("timm.layers")
    kind = getattr(layers, name, None)
    if kind is None:
        pytest.skip(f"this timm has no {name}")
    layer = kind(32)
    params, names = affine_parameters(nn.Sequential(layer))
    assert names == ["0.weight", "0.bias"][: len(names)] and names
    assert params[0] is layer.weight
    assert (len(names) == 2) == isinstance(getattr(layer, "bias", None), nn.Parameter)


def test_a_frozen_timm_layer_has_no_parameters():
    layers = pytest.importorskip("timm.layers")
    assert affine_parameters(layers.FrozenBatchNormAct2d(4)) == ([], [])


def test_a_users_own_layer_counts_by_name_and_shape():
    class MyRootMeanSquareNorm(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = nn.Parameter(weight)

    class NormalisingLinear(MyRootMeanSquareNorm):
        pass

    assert is_normalization(MyRootMeanSquareNorm(torch.ones(3)))
    assert not is_normalization(NormalisingLinear(torch.ones(3, 3)))


NORMS = {
    "group": lambda c: nn.GroupNorm(2, c),
    "layer": lambda c: nn.GroupNorm(1, c),
    "instance": lambda c: nn.InstanceNorm2d(c, affine=True),
    "untracked": lambda c: nn.BatchNorm2d(c, track_running_stats=False),
    "cumulative": lambda c: nn.BatchNorm2d(c, momentum=None),
    "tracked instance": lambda c: nn.InstanceNorm2d(c, affine=True, track_running_stats=True),
}


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("name", ["tent", "cattan"])
@pytest.mark.parametrize("statistics", ["batch", "source", "running"])
def test_every_kind_adapts_resets_and_folds(kind, name, statistics):
    method = build(name, network(NORMS[kind]), statistics=statistics)
    x = target_batches()[0][1]
    before = method.predict(x)
    run(method, "offline")
    after = method.predict(x)
    assert (after - before).abs().max() > 1e-3
    plain = method.fold()
    if statistics != "batch" or not statistics_layers(plain):
        torch.testing.assert_close(plain(x), after, rtol=0, atol=1e-5)
    method.reset()
    assert torch.equal(method.predict(x), before)


def buffers(net):
    return [b.clone() for layer in statistics_layers(net) for b in layer.buffers()]


@pytest.mark.parametrize("statistics", ["batch", "source", "running", "blend"])
def test_buffers_move_only_while_adapting_in_mode_running(statistics):
    method = build("tent", statistics=statistics)
    start = buffers(method.model)
    assert len(start) == 6
    for _, x in target_batches():
        method.predict(x)
    assert all(map(torch.equal, start, buffers(method.model)))
    for _, x in target_batches():
        method(x)
    moved = [not torch.equal(a, b) for a, b in zip(start, buffers(method.model), strict=True)]
    assert all(moved) if statistics == "running" else not any(moved)


def by_hand(net, x, first, second):
    """The network with given (mean, variance) for its two layers; None = the batch's own."""

    def normalise(layer, z, given):
        mean, var = given or (z.mean((0, 2, 3)), z.var((0, 2, 3), unbiased=False))
        z = (z - mean[:, None, None]) / (var + layer.eps).sqrt()[:, None, None]
        return layer.weight[:, None, None] * z + layer.bias[:, None, None]

    z = normalise(net.norm1, net.conv1(x), first).relu()
    return net.fc(normalise(net.norm2, net.conv2(z), second).relu().mean((2, 3)))


def statistics_of(net):
    return [(layer.running_mean.clone(), layer.running_var.clone()) for layer in (net.norm1, net.norm2)]


def test_whose_statistics_are_used():
    net = network()
    x, y = (x for _, x in target_batches(16, 8))
    of_source = statistics_of(net)
    expected = {
        "batch": (by_hand(net, x, None, None), by_hand(net, x, None, None)),
        "source": (by_hand(net, x, *of_source), by_hand(net, x, *of_source)),
        "running": (by_hand(net, x, None, None), None),
    }
    for mode, (adapting, predicting) in expected.items():
        method = build("tent", net, lr=0.0, statistics=mode)
        method(y)
        if mode == "running":
            predicting = by_hand(net, x, *statistics_of(method.model))
        torch.testing.assert_close(method.predict(x), predicting, rtol=0, atol=1e-5)
        torch.testing.assert_close(method(x), adapting, rtol=0, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.1, 0.5])
def test_momentum_of_the_running_statistics(momentum):
    net = network()
    net.norm1.momentum = 0.3
    method = build("tent", net, statistics="running", statistics_momentum=momentum)
    share = momentum
    mean, var = net.norm1.running_mean.clone(), net.norm1.running_var.clone()
    for _, x in target_batches():
        z = net.conv1(x).detach()
        mean = (1 - share) * mean + share * z.mean((0, 2, 3))
        var = (1 - share) * var + share * z.var((0, 2, 3), unbiased=True)
        method(x)
    torch.testing.assert_close(method.model.norm1.running_mean, mean)
    torch.testing.assert_close(method.model.norm1.running_var, var)


def test_momentum_is_left_alone_in_the_other_modes():
    net = copy.deepcopy(network())
    net.norm1.momentum = 0.3
    assert build("tent", net, statistics="batch", statistics_momentum=0.7).model.norm1.momentum == 0.3


def test_batchnorm_of_one_and_three_dimensions():
    for norm, shape in ((nn.BatchNorm1d(3), (6, 3, 5)), (nn.BatchNorm3d(3), (6, 3, 2, 2, 2))):
        torch.manual_seed(0)
        net = nn.Sequential(norm, nn.Flatten(), nn.Linear(torch.Size(shape[1:]).numel(), 4))
        x = torch.randn(shape)
        method = build("tent", net)
        before = method(x)
        dims = [0, *range(2, x.ndim)]
        view = (1, 3, *[1] * (x.ndim - 2))
        z = (x - x.mean(dims).view(view)) / (x.var(dims, unbiased=False).view(view) + 1e-5).sqrt()
        torch.testing.assert_close(before, net[2](z.flatten(1)).detach(), rtol=0, atol=1e-5)
        assert not torch.equal(method.predict(x), before)
