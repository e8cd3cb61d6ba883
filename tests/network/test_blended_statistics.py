"""Statistics between the source's and the batch's: the divergence, the blend, its limits and its gradient."""

from __future__ import annotations

import copy

import pytest
import torch
from small_networks import build, network, target_batches
from torch import nn
from torch.distributions import Normal, kl_divergence

from tta_cattan import UserError
from tta_cattan.network.normalization import blend_towards_source, blending, jeffreys_divergence

SHAPES = [
    (nn.BatchNorm2d, (6, 5, 3, 4)),
    (nn.BatchNorm1d, (10, 4)),
    (nn.BatchNorm1d, (4, 3, 7)),
    (nn.BatchNorm3d, (4, 2, 2, 3, 2)),
]


def layer_and_input(kind=nn.BatchNorm2d, shape=(6, 5, 3, 4), seed=0):
    torch.manual_seed(seed)
    layer = kind(shape[1]).eval()
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer, 1.5 * torch.randn(shape) + 0.7


def by_formula(layer, x, scale, views=1):
    """The layer's output, one channel after the other, in float64."""
    n = len(x) // views
    x = x.double()
    source = layer.running_mean.double(), layer.running_var.double() + layer.eps
    means = [x[:, c].mean() for c in range(x.shape[1])]
    variances = [x[:, c].var(unbiased=False) + layer.eps for c in range(x.shape[1])]
    divergences, by_chance = [], []
    for c, (mean, var) in enumerate(zip(means, variances, strict=True)):
        p, q = Normal(mean, var.sqrt()), Normal(source[0][c], source[1][c].sqrt())
        divergences.append((kl_divergence(p, q) + kl_divergence(q, p)) / 2)
        rows = x[:, c].reshape(len(x), -1).detach()
        values = torch.stack([rows.mean(1), ((rows - mean.detach()) ** 2).mean(1)])
        errors = values.reshape(2, views, n).mean(1).var(1) / n  # of the mean and of the variance
        by_chance.append(errors[0] * (1 / var + 1 / source[1][c]) / 4 + errors[1] / (4 * var * source[1][c]))
    found, chance = (torch.stack(values).mean().detach() for values in (divergences, by_chance))
    w = max(0.0, found - chance) / (found + scale)
    out = torch.empty_like(x)
    for c, (mean, var) in enumerate(zip(means, variances, strict=True)):
        m, v = (1 - w) * source[0][c] + w * mean, (1 - w) * source[1][c] + w * var
        out[:, c] = (x[:, c] - m) / v.sqrt() * layer.weight[c].double() + layer.bias[c].double()
    return out


def test_the_divergence_is_torchs():
    generator = torch.Generator().manual_seed(0)
    means, stds = torch.randn(2, 7, generator=generator), torch.rand(2, 7, generator=generator) + 0.2
    p, q = (Normal(mean, std) for mean, std in zip(means, stds, strict=True))
    expected = ((kl_divergence(p, q) + kl_divergence(q, p)) / 2).mean()
    found = jeffreys_divergence(means[0], stds[0] ** 2, means[1], stds[1] ** 2)
    torch.testing.assert_close(found, expected)
    assert jeffreys_divergence(means[0], stds[0], means[0], stds[0]).abs() < 1e-6


@pytest.mark.parametrize("scale", [1e-3, 0.05, 2.0])
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("kind, shape", SHAPES)
def test_the_blend_and_its_gradient_are_the_formulas(kind, shape, views, scale):
    layer, x = layer_and_input(kind, shape)
    x.requires_grad_(True)
    target = torch.randn(shape)
    outputs, gradients = [], []
    for compute in (
        lambda: layer(blend_towards_source(x, layer, scale, views)),
        lambda: by_formula(layer, x, scale, views),
    ):
        out = compute()
        outputs.append(out.double())
        gradients.append(torch.autograd.grad((out * target).sum(), [x, layer.weight, layer.bias]))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-5)


def test_its_limits_are_the_batch_and_the_source():
    layer, x = layer_and_input()
    source = layer(x)
    torch.testing.assert_close(layer(blend_towards_source(x, layer, 1e9)), source, rtol=1e-4, atol=1e-5)
    far = x + 400  # so far that chance has no part in it
    batch = nn.functional.batch_norm(far, None, None, layer.weight, layer.bias, training=True, eps=layer.eps)
    torch.testing.assert_close(layer(blend_towards_source(far, layer, 1e-9)), batch, rtol=1e-2, atol=1e-2)


def test_data_like_the_sources_keep_its_statistics_and_others_leave_them():
    layer = nn.BatchNorm2d(8).eval()
    like = torch.randn(64, 8, 6, 6, generator=torch.Generator().manual_seed(0))
    own = nn.BatchNorm2d(8, track_running_stats=False).eval()
    moved = 3 * like + 2
    near, far = (layer(blend_towards_source(x, layer, 0.05)) for x in (like, moved))
    assert (near - layer(like)).abs().max() < 1e-2
    assert (far - own(moved)).square().mean() < 0.05 * (layer(moved) - own(moved)).square().mean()


def test_what_chance_explains_is_not_believed():
    layer, weights = nn.BatchNorm2d(64).eval(), {}
    for n in (2, 8, 200):
        x = torch.randn(n, 64, 2, 2, generator=torch.Generator().manual_seed(0))
        own = nn.functional.batch_norm(x, None, None, training=True)
        blended = layer(blend_towards_source(x, layer, 0.05)) - layer(x)
        weights[n] = blended.norm() / (own - layer(x)).norm()
    assert max(weights.values()) < 0.4, "samples of the source itself, however few, are normalised by the source"


def test_two_views_of_a_sample_are_no_two_samples():
    layer, x = layer_and_input(shape=(3, 5, 2, 2))
    once, twice = (layer(blend_towards_source(v, layer, 0.05, len(v) // 3)) for v in (x, torch.cat([x, x])))
    torch.testing.assert_close(torch.cat([once, once]), twice)
    assert not torch.allclose(layer(blend_towards_source(torch.cat([x, x]), layer, 0.05)), twice)


def test_the_layers_are_let_go_also_after_an_error():
    layer, x = layer_and_input()
    source = layer(x)
    with pytest.raises(ZeroDivisionError), blending([layer, nn.InstanceNorm2d(5, track_running_stats=True)], 0.05):
        assert not torch.equal(layer(x), source)
        raise ZeroDivisionError
    assert torch.equal(layer(x), source)


@pytest.mark.parametrize("name", ["norm", "tent"])
def test_a_method_uses_them_while_adapting_and_predicting(name):
    net = network()
    x = target_batches()[0][1]
    method = build(name, copy.deepcopy(net), lr=0.0, statistics="blend", blend_scale=0.2)
    z = by_formula(net.norm1, net.conv1(x), 0.2).float().relu()
    expected = net.fc(by_formula(net.norm2, net.conv2(z), 0.2).float().relu().mean((2, 3)))
    torch.testing.assert_close(method.predict(x), expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(method(x), expected, rtol=1e-3, atol=1e-4)


def test_a_scale_must_be_positive():
    with pytest.raises(UserError, match=r"blend_scale = -1.*must be > 0"):
        build("tent", statistics="blend", blend_scale=-1)
