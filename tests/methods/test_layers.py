"""Alignment at inner layers: against a literal loop, on vectors and feature maps, in files and folded."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tta_cattan import CATTAn, Subspace, UserError, fit_subspace
from tta_cattan.network.layers import iterate_features, list_layers

N, D = 24, 12


class BottleneckNet(nn.Module):
    """SHOT's shape: a backbone, a bottleneck with batch normalisation, a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.mix = nn.Conv2d(8, D, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.bottleneck = nn.Linear(D, 6)
        self.bottleneck_norm = nn.BatchNorm1d(6)
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        maps = self.mix(self.norm(self.conv(x)).relu())
        return self.fc(self.bottleneck_norm(self.bottleneck(self.pool(maps).flatten(1))))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return BottleneckNet().double().eval()


def images(n: int = N, seed: int = 1) -> torch.Tensor:
    return torch.rand(n, 3, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def source_of(net: nn.Module, layer: str) -> Subspace:
    rows = torch.cat(list(iterate_features(net, "fc", [images(60, 7)], layer)))
    return fit_subspace(rows, layer=layer)


def adapted(net: nn.Module, layer: str, d: int = 5, **options) -> CATTAn:
    return CATTAn(copy.deepcopy(net), source_subspace=source_of(net, layer), layer=layer, d=d, **options)


def literal(net, layer, x, w_t, w_s, phi):
    """Return the logits of the network whose layer's output is aligned, written out sample by sample."""
    torch_bn = {"eps": net.norm.eps}
    z = nn.functional.batch_norm(net.conv(x), None, None, net.norm.weight, net.norm.bias, True, 0.0, **torch_bn)

    def align(vector):
        return vector @ w_t @ phi @ w_s.T

    if layer == "norm":
        rows = [align(z[i, :, a, b]) for i in range(len(z)) for a in range(z.shape[2]) for b in range(z.shape[3])]
        z = torch.stack(rows).reshape(len(z), *z.shape[2:], z.shape[1]).permute(0, 3, 1, 2)
    pooled = net.mix(z.relu()).mean((2, 3))
    if layer == "pool":
        pooled = torch.stack([align(row) for row in pooled])
    hidden = net.bottleneck(pooled)
    norm = net.bottleneck_norm
    hidden = nn.functional.batch_norm(hidden, None, None, norm.weight, norm.bias, True, 0.0, norm.eps)
    return net.fc(hidden)


@pytest.mark.parametrize("layer", ["pool", "norm"])
def test_an_inner_layer_equals_the_literal_loop(net, layer):
    x = images()
    method = adapted(net, layer, optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    method.prepare([(torch.arange(N), x)])
    aligned = method.aligned
    features = torch.cat(list(iterate_features(method.model.eval(), "fc", [x], f"{layer}.inner")))
    with torch.no_grad():
        aligned.phi.add_(0.1 * torch.randn(aligned.phi.shape, generator=torch.Generator().manual_seed(3)))
    w_t, w_s = aligned.target_basis.clone(), aligned.readout.T.clone()
    assert w_t.shape == (features.shape[1], 5)
    phi = aligned.phi.detach().clone().requires_grad_()
    twin = copy.deepcopy(net).requires_grad_(True)
    expected = literal(twin, layer, x, w_t, w_s, phi)
    logits, loss = method.loss_calculation(x, None)
    torch.testing.assert_close(logits, expected)

    others = [torch.cat([row[: row.argmax()], row[row.argmax() + 1 :]]) for row in expected]
    ratio = torch.stack([other.exp().sum().log() - row.max() for other, row in zip(others, expected, strict=True)])
    mean = expected.softmax(1).mean(0)
    balance = -(mean.log() / 5 + (1 - mean).log() * 4 / 5).sum()
    value = 0.025 * ratio.mean() + ((w_t @ phi - w_s) ** 2).sum() + balance
    torch.testing.assert_close(loss, value)
    loss.backward()
    value.backward()
    torch.testing.assert_close(aligned.phi.grad, phi.grad)
    for name in ("norm", "bottleneck_norm"):
        inner = getattr(method.model, name)
        inner = inner.inner if name == layer else inner
        torch.testing.assert_close(inner.weight.grad, getattr(twin, name).weight.grad)
    assert method.model.bottleneck.weight.grad is None, "what follows stays frozen but for its normalisation"


@pytest.mark.parametrize(("layer", "follower"), [("pool", "bottleneck"), ("norm", None)])
def test_the_contract_holds_at_an_inner_layer(net, layer, follower):
    method = adapted(net, layer, lr=1e-2, statistics="source")
    x = images()
    before = method.predict(x)
    for step in range(3):
        method(images(seed=step))
    assert not torch.equal(method.predict(x), before)
    other = adapted(net, layer, lr=1e-2, statistics="source")
    other.load_state_dict(method.state_dict(), strict=True)
    torch.testing.assert_close(other.predict(x), method.predict(x))
    assert torch.equal(copy.deepcopy(method).predict(x), method.predict(x))
    if follower:
        plain = method.fold()
        assert type(plain) is BottleneckNet and [*plain.state_dict()] == [*net.state_dict()]
        torch.testing.assert_close(plain(x), method.predict(x))
    else:
        with pytest.raises(UserError, match="cannot be folded"):
            method.fold()
    method.reset()
    torch.testing.assert_close(method.predict(x), before, rtol=0, atol=0)


def test_a_single_sample_passes_an_inner_layer(net):
    method = adapted(net, "pool", lr=1e-2)
    x = images(1)
    torch.testing.assert_close(method.predict(x), net(x))
    assert method(x).shape == (1, 5) and method(images(4)).shape == (4, 5)


def test_a_pointwise_convolution_takes_the_alignment_of_a_feature_map(net):
    sequence = nn.Sequential(net.conv, net.norm, net.mix, net.pool, nn.Flatten(), nn.Linear(D, 5).double()).eval()
    method = CATTAn(copy.deepcopy(sequence), layer="1", d=4, lr=1e-2, statistics="source")
    x = images()
    method(x)
    plain = method.fold()
    assert isinstance(plain[2], nn.Conv2d)
    torch.testing.assert_close(plain(x), method.predict(x))


def test_without_source_data_the_row_space_of_the_next_linear_layer_stands_in(net):
    method = CATTAn(copy.deepcopy(net), layer="pool")
    assert method.source.dim == D and method.source.d == 6
    assert method(images()).shape == (N, 5) and method.follower == "bottleneck"
    with pytest.raises(UserError, match="does not receive the output of 'norm' directly"):
        CATTAn(copy.deepcopy(net), layer="norm")(images())


def test_a_subspace_of_another_layer_is_refused(net, tmp_path):
    source_of(net, "pool").save(tmp_path / "s.safetensors")
    loaded = Subspace.load(tmp_path / "s.safetensors")
    assert loaded.layer == "pool"
    with pytest.raises(UserError, match="was fitted at layer 'pool'"):
        CATTAn(copy.deepcopy(net), source_subspace=loaded, layer="norm")


def test_layers_are_listed_with_their_shapes(net):
    found = {name: shape for name, _, shape in list_layers(net, images(2))}
    assert found["pool"] == (2, D, 1, 1) and found["norm"] == (2, 8, 6, 6) and found["fc"] == (2, 5)
