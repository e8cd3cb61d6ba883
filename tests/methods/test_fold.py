"""Folding: the same outputs from a plain model that can be exported."""

from __future__ import annotations

import warnings

import pytest
import torch
from small_networks import FEATURES, build, network, run, target_batches
from torch import nn

from tta_cattan import UserError

STATISTICS = ("batch", "source", "running")


def folded(centering="pca", statistics="batch", protocol="offline", name="cattan", **options):
    if name == "cattan":
        options["centering"] = centering
    method = build(name, statistics=statistics, **options)
    run(method, protocol)
    return method, method.fold()


@pytest.mark.parametrize("centering", ["pca", "none", "shift"])
@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("protocol", ["offline", "online"])
def test_same_outputs_from_a_plain_model(centering, statistics, protocol):
    method, plain = folded(centering, statistics, protocol)
    assert method.aligned.enabled
    for _, x in target_batches(seed=8):
        torch.testing.assert_close(plain(x), method.predict(x), rtol=0, atol=1e-5)
    assert not [m for m in plain.modules() if type(m).__module__.startswith("tta_cattan")]
    assert type(plain.fc) is nn.Linear
    shapes = {name: value.shape for name, value in network().state_dict().items()}
    if statistics == "batch":
        shapes = {n: s for n, s in shapes.items() if "running" not in n and "num_batches" not in n}
    assert {name: value.shape for name, value in plain.state_dict().items()} == shapes
    assert not any(p.requires_grad for p in plain.parameters())
    assert not any(m.training for m in plain.modules())


@pytest.mark.parametrize("statistics", ["source", "running"])
def test_the_state_loads_into_the_source_architecture(statistics):
    method, plain = folded("shift", statistics)
    net = network(seed=5)
    net.load_state_dict(plain.state_dict(), strict=True)
    x = target_batches()[0][1]
    torch.testing.assert_close(net(x), method.predict(x), rtol=0, atol=1e-5)


def test_a_fold_is_independent_of_its_method():
    method, plain = folded()
    x = target_batches()[0][1]
    before, kept = plain(x), method.predict(x)
    with torch.no_grad():
        for param in plain.parameters():
            param.add_(1)
    assert torch.equal(method.predict(x), kept)
    _, plain = folded()
    method.reset()
    assert torch.equal(plain(x), before)


def test_a_head_without_bias_keeps_none_unless_it_is_shifted():
    for centering, has_bias in (("pca", False), ("shift", True)):
        method, plain = folded(centering, net=network(bias=False))
        x = target_batches()[0][1]
        torch.testing.assert_close(plain(x), method.predict(x), rtol=0, atol=1e-5)
        assert (plain.fc.bias is not None) == has_bias


@pytest.mark.parametrize("name", ["source", "norm", "tent", "tent_plus", "shot"])
@pytest.mark.parametrize("statistics", STATISTICS)
def test_the_other_methods_fold_to_what_they_predict(name, statistics):
    method, plain = folded(name=name, statistics=statistics)
    x = target_batches()[0][1]
    torch.testing.assert_close(plain(x), method.predict(x), rtol=0, atol=1e-5)
    torch.testing.assert_close(plain.train().eval()(x), method.predict(x), rtol=0, atol=1e-5)


def test_ip_refuses():
    with pytest.raises(UserError, match="cannot be folded"):
        build("ip").fold()


@pytest.mark.parametrize("statistics", ["batch", "running"])
@pytest.mark.skipif(not hasattr(torch.export, "Dim"), reason="torch.export has batches of any size since torch 2.2")
def test_torch_export(statistics):
    method, plain = folded("shift", statistics)
    x = target_batches()[0][1]
    batch = {0: torch.export.Dim("batch", min=2)}
    program = torch.export.export(plain, (x,), dynamic_shapes=(batch,))
    for _, x in target_batches(30, 6, seed=8):
        torch.testing.assert_close(program.module()(x), method.predict(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_onnx_export(statistics, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    method, plain = folded("shift", statistics)
    x = target_batches()[0][1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(plain, (x,), tmp_path / "model.onnx", dynamo=True, verbose=False)
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for _, x in target_batches(seed=8):
        (logits,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), method.predict(x), rtol=0, atol=1e-4)


def test_the_plain_model_has_the_cost_of_the_source():
    _, plain = folded()
    assert plain.fc.weight.shape == (5, FEATURES)
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in network().parameters())
