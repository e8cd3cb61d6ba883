"""IP: the identity at the start, the transformation's formula, the diversity over several steps, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from small_networks import build, images, network, target_batches
from torch import nn

from tta_cattan import UserError
from tta_cattan.methods import IP
from tta_cattan.methods.ip import InputTransform


def test_the_identity_at_the_start():
    x = images(6, 1)
    assert torch.equal(InputTransform(3)(x), x)
    ip, norm = build("ip"), build("norm")
    assert torch.equal(ip.predict(x), norm.predict(x))
    source = build("source")
    assert torch.equal(build("ip", statistics="source").predict(x), source.predict(x))


def test_the_transformation_is_its_formula():
    torch.manual_seed(0)
    transform, x = InputTransform(2, width=4, depth=3), torch.randn(5, 2, 6, 7)
    with torch.no_grad():
        transform.tau.fill_(0.7)
        transform.gamma.copy_(torch.tensor([1.5, -0.5])[:, None, None])
        transform.beta.copy_(torch.tensor([0.1, 0.2])[:, None, None])
        expected = torch.empty_like(x)
        mixed = 0.7 * x + 0.3 * transform.residual(x)
        for channel, (gamma, beta) in enumerate([(1.5, 0.1), (-0.5, 0.2)]):
            expected[:, channel] = gamma * mixed[:, channel] + beta
        torch.testing.assert_close(transform(x), expected)
    kinds = [type(layer) for layer in transform.residual]
    assert kinds == [nn.Conv2d, nn.GroupNorm, nn.ReLU] * 3 + [nn.Conv2d]


@pytest.mark.parametrize("confidence", ["hlr", "slr"])
def test_the_loss_over_several_steps(confidence):
    method = build("ip", confidence=confidence, kappa=0.8, lambda_lr=0.05)
    rng, running = np.random.default_rng(0), np.full(5, 1 / 5)
    for _ in range(4):
        y = 2 * rng.normal(size=(9, 5)) + np.arange(5)
        p = softmax(y, 1)
        running = 0.8 * running + 0.2 * p.mean(0)
        ratios = np.array([[-row[c] + logsumexp(np.delete(row, c)) for c in range(5)] for row in y])
        ratio = ratios[np.arange(9), y.argmax(1)] if confidence == "hlr" else (p * ratios).sum(1)
        expected = (running * np.log(running * 5)).sum() + 0.05 * ratio.mean()
        assert method.loss(torch.from_numpy(y)).item() == pytest.approx(expected, rel=1e-6)
    method.reset()
    assert method.target.balance.mean is None


def test_the_whole_transformation_is_adapted():
    method = build("ip")
    before = {name: p.clone() for name, p in method.model.transform.named_parameters()}
    for _, x in target_batches():
        method(x)
    moved = {name for name, p in method.model.transform.named_parameters() if not torch.equal(p, before[name])}
    # The last layer's gradient is zero until tau has moved; a bias before GroupNorm never reaches the output.
    assert {"tau", "gamma", "beta", "residual.6.weight", "residual.0.weight", "residual.1.weight"} <= moved
    names = method.collect_params()[1]
    assert {f"transform.{name}" for name in before} <= set(names)


@pytest.mark.parametrize("channels", [1, 4])
def test_channels_are_those_of_the_first_convolution(channels):
    net = nn.Sequential(nn.Conv2d(channels, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(6 * 36, 5))
    method = IP(net)
    assert method(torch.randn(4, channels, 8, 8)).shape == (4, 5)
    assert method.model.transform.gamma.shape == (channels, 1, 1)


def test_refuses_a_model_of_features():
    net = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 5))
    with pytest.raises(UserError, match="IP transforms input images, and Sequential has no 2-d convolution"):
        IP(net)


@pytest.mark.parametrize("shape", [(4, 1, 8, 8), (4, 3, 8), (4, 12)])
def test_refuses_inputs_that_are_not_its_images(shape):
    with pytest.raises(UserError, match=r"\(batch, 3, height, width\)"):
        IP(network())(torch.randn(shape))
