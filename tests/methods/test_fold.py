"""Folding: the same outputs from a plain model that can be exported."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from small_networks import FEATURES, build, network, run, target_batches
from torch import nn

from tta_cattan import UserError
from tta_cattan.network.layers import compose_linear

EXACT = ("source", "running")  # the plain network normalises by the very numbers that the method predicts with


def folded(centering="pca", statistics="source", protocol="offline", name="cattan", **options):
    if name == "cattan":
        options["centering"] = centering
    method = build(name, statistics=statistics, **options)
    run(method, protocol)
    return method, method.fold()


@pytest.mark.parametrize("centering", ["pca", "none", "shift"])
@pytest.mark.parametrize("statistics", EXACT)
@pytest.mark.parametrize("protocol", ["offline", "online"])
def test_same_outputs_from_a_plain_model(centering, statistics, protocol):
    method, plain = folded(centering, statistics, protocol)
    assert method.aligned.enabled
    for _, x in target_batches(seed=8):
        torch.testing.assert_close(plain(x), method.predict(x), rtol=0, atol=1e-5)
    assert not [m for m in plain.modules() if type(m).__module__.startswith("tta_cattan")]
    assert type(plain.fc) is nn.Linear
    shapes = {name: value.shape for name, value in network().state_dict().items()}
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


def test_a_head_without_bias_keeps_none():
    method, plain = folded("pca", net=network(bias=False))
    x = target_batches()[0][1]
    torch.testing.assert_close(plain(x), method.predict(x), rtol=0, atol=1e-5)
    assert plain.fc.bias is None


def test_what_cannot_be_folded_says_so_before_adaptation():
    bare, cosine = network(bias=False), network()
    cosine.fc.register_forward_pre_hook(lambda _, args: F.normalize(args[0]))
    for method, reason in (
        (build("ip"), "input transformation"),
        (build("cattan_plus", mirror=True), "mirror=True"),
        (build("cattan", bare, centering="shift"), "needs a bias"),
        (build("cattan_plus", bare), "classes=True"),
        (build("cattan_plus", cosine), "classes=True"),
        (build("cattan", layer="norm2", source_subspace=None), "shows the first batch"),
    ):
        assert reason in method.unfoldable
        with pytest.raises(UserError, match="cannot be folded: ") as caught:
            method.fold()
        assert method.unfoldable in str(caught.value)
    assert build("tent").unfoldable == build("cattan").unfoldable == build("cattan_plus").unfoldable == ""


def noted_by_hooks(method):
    """Return a list that receives, per update, the mean and variance of what enters the first layer's convolution."""
    seen = []
    method.model.norm1.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().clone()))
    return seen


@pytest.mark.parametrize("name", ["norm", "tent", "cattan"])
def test_the_statistics_are_those_of_the_stream(name):
    # Momentum 0: all batches count alike, and the variance is that of all samples, what lies between them included.
    method = build(name, statistics_momentum=0.0)
    seen = noted_by_hooks(method)
    for _, x in target_batches():
        method(x)
    method.predict(torch.ones(8, 3, 8, 8))  # a prediction leaves no trace
    rows = [x.transpose(0, 1).flatten(1).double() for x in seen[:5]]
    mean = torch.stack([r.mean(1) for r in rows]).mean(0)
    between = torch.stack([(r.mean(1) - mean).square() for r in rows]).mean(0)
    var = torch.stack([r.var(1) for r in rows]).mean(0) + between
    layer = method.fold().norm1
    torch.testing.assert_close(layer.running_mean.double(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer.running_var.double(), var, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("statistics", ["batch", "blend", "running"])
@pytest.mark.parametrize("name", ["tent", "cattan"])
def test_one_image_and_many_agree_and_a_fresh_network_takes_the_state(name, statistics):
    method = build(name, statistics=statistics)
    source = network()
    run(method, "online")
    state = method.fold().state_dict()
    fresh = network(seed=5)
    fresh.load_state_dict(state, strict=True)
    x = torch.cat([x for _, x in target_batches(64, seed=8)])
    torch.testing.assert_close(torch.cat([fresh(one) for one in x.split(1)]), fresh(x), rtol=1e-4, atol=1e-5)
    # It is nearer to what the method says of a large batch than the source model is.
    error = (fresh(x) - method.predict(x)).square().mean()
    assert error < 0.5 * (source(x) - method.predict(x)).square().mean()


def test_a_spoilt_batch_does_not_reach_the_statistics():
    for name in ("norm", "tent"):
        method = build(name)
        method(target_batches()[0][1])
        before = method.fold().state_dict()
        method(torch.full((8, 3, 8, 8), float("nan")))
        after = method.fold().state_dict()
        assert all(torch.equal(before[key], after[key]) for key in before)


def test_the_statistics_are_the_state_of_a_stream():
    method, other = build("tent"), build("tent")
    run(method, "online")
    other.load_state_dict(method.state_dict())
    for key, value in method.fold().state_dict().items():
        assert torch.equal(other.fold().state_dict()[key], value)
    method.reset()
    assert torch.equal(method.fold().norm1.running_var, network().norm1.running_var)


@pytest.mark.parametrize("name", ["source", "tent", "tent_plus", "shot"])
@pytest.mark.parametrize("statistics", EXACT)
def test_the_other_methods_fold_to_what_they_predict(name, statistics):
    method, plain = folded(name=name, statistics=statistics)
    x = target_batches()[0][1]
    torch.testing.assert_close(plain(x), method.predict(x), rtol=0, atol=1e-5)
    torch.testing.assert_close(plain.train().eval()(x), method.predict(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("statistics", ["batch", "running"])
@pytest.mark.skipif(not hasattr(torch.export, "Dim"), reason="torch.export has batches of any size since torch 2.2")
def test_torch_export(statistics):
    _, plain = folded("shift", statistics)
    x = target_batches()[0][1]
    batch = {0: torch.export.Dim("batch", min=2)}
    program = torch.export.export(plain, (x,), dynamic_shapes=(batch,))
    for _, x in target_batches(30, 6, seed=8):
        torch.testing.assert_close(program.module()(x), plain(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_onnx_export(statistics, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    _, plain = folded("shift", statistics)
    x = target_batches()[0][1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(plain, (x,), tmp_path / "model.onnx", dynamo=True, verbose=False)
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for _, x in target_batches(seed=8):
        (logits,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), plain(x), rtol=0, atol=1e-4)


def test_the_plain_model_has_the_cost_of_the_source():
    _, plain = folded()
    assert plain.fc.weight.shape == (5, FEATURES)
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in network().parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_target_classes_fold_into_a_classifier_of_half_precision(dtype):
    method = build("cattan_plus", class_change=0.0)
    run(method, "offline")
    classes, head = method.target.classes, network().fc.to(dtype)
    plain = classes.fold_into(head)
    assert plain.weight.dtype == plain.bias.dtype == dtype
    torch.testing.assert_close(plain.weight, (classes.temperature * (head.weight + classes.weight)).to(dtype))
    x = torch.randn(4, FEATURES, dtype=dtype)
    weight = torch.randn(FEATURES, FEATURES)
    joint = compose_linear(head, weight, torch.zeros(FEATURES))
    assert joint(x).dtype == dtype
    torch.testing.assert_close(joint(x).float(), head.float()(x.float() @ weight.T), atol=0.3, rtol=0.1)
