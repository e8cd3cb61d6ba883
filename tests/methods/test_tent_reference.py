"""TENT, Norm and Source against their algorithms written down once more, on plain torch layers."""

from __future__ import annotations

import copy

import pytest
import torch
from small_networks import adam, build, network, target_batches
from torch import nn

from tta_cattan.methods import Norm, Source, Tent


def without_running_statistics(net):
    net = copy.deepcopy(net).eval().requires_grad_(False)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
    return net


def reference_tent(net, batches, lr, steps):
    """Entropy of softmax, Adam on the affines of BatchNorm, logits from before the update."""
    net = without_running_statistics(net)
    params = [p for m in net.modules() if isinstance(m, nn.BatchNorm2d) for p in (m.weight, m.bias)]
    for param in params:
        param.requires_grad_(True)
    optimizer = torch.optim.Adam(params, lr=lr, betas=(0.9, 0.999))
    outputs = []
    for _, x in batches:
        for _ in range(steps):
            logits = net(x)
            p = torch.exp(logits) / torch.exp(logits).sum(1, keepdim=True)
            optimizer.zero_grad()
            (-(p * torch.log(p)).sum(1)).mean().backward()
            optimizer.step()
        outputs.append(logits.detach())
    return torch.cat(outputs), [p.detach() for p in params]


@pytest.mark.parametrize("steps", [1, 3])
def test_tent_equals_its_algorithm(steps):
    net, batches = network(), target_batches(64, 16)
    expected, params = reference_tent(net, batches, lr=1e-3, steps=steps)
    tent = Tent(copy.deepcopy(net), optimizer=adam(1e-3), steps=steps)
    logits = torch.cat([tent(x) for _, x in batches])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)
    ours, names = tent.collect_params()
    assert names == ["norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"]
    for param, other in zip(ours, params, strict=True):
        torch.testing.assert_close(param.detach(), other, rtol=0, atol=1e-6)
    assert (logits - torch.cat([net(x) for _, x in batches])).abs().max() > 1e-2


def test_episodic_tent_begins_anew_with_every_batch():
    net, batches = network(), target_batches(32, 16)
    tent = Tent(copy.deepcopy(net), optimizer=adam(1e-2), steps=2, episodic=True)
    for index, x in batches:
        expected, _ = reference_tent(net, [(index, x)], lr=1e-2, steps=2)
        torch.testing.assert_close(tent(x), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("statistics", ["batch", "running", "source"])
def test_norm_uses_the_statistics_of_the_batch_and_keeps_the_running_ones(statistics):
    net = network()
    norm, reference = Norm(copy.deepcopy(net), statistics=statistics), without_running_statistics(net)
    for _, x in target_batches():
        torch.testing.assert_close(norm(x), reference(x), rtol=0, atol=1e-6)
        assert (norm(x) - net(x)).abs().max() > 1e-2
    assert torch.equal(norm.model.norm1.running_mean, net.norm1.running_mean)


@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_source_is_the_model_itself(statistics):
    net = network()
    source = Source(copy.deepcopy(net), statistics=statistics)
    for _, x in target_batches():
        assert torch.equal(source(x), net(x))


def test_tent_plus_without_balance_is_tent():
    batches = target_batches()
    plus, tent = build("tent_plus", lambda_cb=0.0), build("tent")
    for _, x in batches:
        assert torch.equal(plus(x), tent(x))
    assert not torch.equal(build("tent_plus")(batches[0][1]), torch.zeros(8, 5))


def test_tent_plus_adds_the_class_balance():
    from tta_cattan.losses import class_balance, softmax_entropy

    logits = torch.randn(9, 5)
    method = build("tent_plus", lambda_cb=0.7)
    torch.testing.assert_close(method.loss(logits), softmax_entropy(logits) + 0.7 * class_balance(logits))
