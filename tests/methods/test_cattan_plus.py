"""CATTAn+: CATTAn-F in a stream; updates and the target's classes where there is a whole set."""

from __future__ import annotations

import pytest
import torch
from small_networks import adam, assert_same_state, build, images, run, snapshot, target_batches

from tta_cattan import CATTAnPlus, UserError, fit_source_moments
from tta_cattan.bench.models.networks import shot_head
from tta_cattan.bench.run.plan import plan_rows
from tta_cattan.config import find_config


def test_in_a_stream_it_is_cattan_f_and_no_parameter_moves():
    plus, forward = build("cattan_plus", class_change=0.0), build("cattan_forward")
    before = snapshot(plus.model)
    torch.testing.assert_close(run(plus, "online"), run(forward, "online"), rtol=0, atol=0)
    assert all(torch.equal(value, before[name]) for name, value in plus.model.state_dict().items() if name in before)


def test_offline_it_learns_and_then_the_classes_have_a_say():
    plus, learning = (build("cattan_plus", classes=classes, class_change=0.0, lr=1e-2) for classes in (True, False))
    fixed = build("cattan_plus", classes=False, class_change=0.0, lr=0.0)
    for method in (plus, learning, fixed):
        run(method, "offline")
    x = images(8, 5)
    assert plus.target.classes is not None and learning.target.classes is None
    torch.testing.assert_close(plus.infer(x, adapting=False), learning.predict(x), rtol=0, atol=0)
    assert not torch.allclose(plus.predict(x), learning.predict(x))
    assert not torch.allclose(learning.predict(x), fixed.predict(x), atol=1e-3)


def projecting(**options):
    torch.manual_seed(0)
    net = shot_head(5, 20).eval()
    source = fit_source_moments(net, features(1, 512).split(128), layer="backbone")
    return CATTAnPlus(net, source_moments=source, layer="backbone", d=6, classes=False, optimizer=adam(1e-2), **options)


def features(seed, n=64, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 20, generator=generator) @ torch.diag(torch.linspace(2, 0.1, 20)) + shift


def target(n=4):
    return [(torch.arange(64), features(seed, shift=1.0)) for seed in range(n)]


def test_offline_it_learns_phi_and_the_affines_from_the_fixed_moments():
    method, batches = projecting(), target()
    assert method.optimizer is None
    method.prepare(batches)
    assert [tuple(p.shape) for p in method.collect_params()[0]] == [(256,), (256,), (6, 6)]
    moments = {name: found.mean.clone() for name, found in method.target.domain.moments.items()}
    net, x, (basis, mean) = method.model, batches[0][1], method.subspace
    with torch.enable_grad():
        found = method.loss_calculation(x, None)[1]
    found.backward()

    phi, w = torch.eye(6, requires_grad=True), basis[:, :6]
    z = net.bottleneck(mean + (x - mean) @ w @ phi @ w.T)
    first, second = method.target.domain.maps["bn"]
    if first.ndim == 1:
        z = (z - first) / (second + net.bn.eps).sqrt()
    else:
        z = (z @ first + second - net.bn.running_mean) / (net.bn.running_var + net.bn.eps).sqrt()
    weight, bias = (param.detach().clone().requires_grad_() for param in (net.bn.weight, net.bn.bias))
    y = net.fc(z * weight + bias)
    others = [torch.cat([row[:c], row[c + 1 :]]).exp().sum().log() for row, c in zip(y, y.argmax(1), strict=True)]
    running = y.softmax(1).mean(0)  # of more than ten samples per class: the batch alone
    loss = 0.025 * (torch.stack(others) - y.amax(1)).mean() + (running * (5 * running).log()).sum()
    loss = loss + 0.01 * (phi - torch.eye(6)).square().sum()
    loss.backward()
    torch.testing.assert_close(found, loss)
    for ours, theirs in zip(method.collect_params()[0], (weight, bias, phi), strict=True):
        assert theirs.grad.abs().max() > 1e-4
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-3)
    method(x)
    assert all(torch.equal(held.mean, moments[name]) for name, held in method.target.domain.moments.items())


@pytest.mark.parametrize("change", [0.0, 0.05, 0.5])
def test_it_learns_as_far_as_the_alignment_changed_predictions(change):
    method, batches = projecting(class_change=change), target()
    parts, aligned = [], projecting()
    aligned.begin_target(known=True)
    for _, x in batches:
        before = projecting().predict(x).argmax(1)
        with torch.no_grad():
            parts.append(aligned.infer(x, adapting=True).argmax(1) != before)
    changed = torch.cat(parts).double().mean().item()
    method.prepare(batches)
    assert method.target.changed == changed > 0.1
    (group,) = method.optimizer.param_groups
    assert group["lr"] == pytest.approx(1e-2 * changed**2 / (changed**2 + change**2))


def test_what_it_learnt_folds_resets_and_comes_back():
    method, batches = projecting(), target()
    run(method, "offline", batches)
    x = features(9, shift=1.0)
    learnt = method.predict(x)
    torch.testing.assert_close(method.fold()(x), learnt, atol=1e-4, rtol=1e-4)
    other = projecting()
    other.load_state_dict(method.state_dict())
    for one in (method, other):
        one(batches[0][1], batches[0][0])
    assert torch.equal(other.predict(x), method.predict(x)) and not torch.equal(method.predict(x), learnt)
    method.reset(keep_known=True)
    fresh = projecting()
    fresh.prepare(batches)
    assert torch.equal(method.predict(x), fresh.predict(x))
    for one in (method, fresh):
        one(batches[1][1], batches[1][0])
    assert torch.equal(method.predict(x), fresh.predict(x))
    method.reset()
    assert method.optimizer is None and torch.equal(method.predict(x), projecting().predict(x))


def test_a_whole_set_is_one_domain_and_all_of_it_counts():
    method, batches = build("cattan_forward", memory=8), [(i, x) for i, x in target_batches()]
    mixed = [*batches, *((i, -x) for i, x in batches)]  # a stream would make two of them
    method.prepare(mixed)
    assert len(method.target.domains) == 1
    assert method.target.domain.count == sum(len(x) for _, x in mixed)
    expected = torch.cat([method.model.conv1(x) for _, x in mixed]).transpose(0, 1).flatten(1)
    torch.testing.assert_close(method.target.domain.moments["norm1"].mean, expected.mean(1), rtol=1e-3, atol=1e-4)
    method.reset(keep_known=True)
    assert method.predict(images(4, 1)).shape == (4, 5) and not method.target.domains


@pytest.mark.parametrize("folder", ["office31", "office31_features", "officehome", "officehome_features"])
@pytest.mark.parametrize("name", ["cattan_forward", "cattan_plus"])
def test_the_configs_of_domains_name_the_layer_to_project(folder, name):
    (row,) = plan_rows(find_config(f"cfgs/{folder}/cattan.yaml"), [], [name])
    assert row.cfg[name.upper()].LAYER == "backbone"


def test_safety_compares_with_the_aligned_model_and_leaves_no_trace():
    method, batches = projecting(), target()
    method.prepare(batches)
    expected = method.predict(batches[0][1])
    for _ in range(3):
        for indices, x in batches:
            method(x, indices)
    before = snapshot(method), method.predict(batches[0][1])
    assert not torch.equal(before[1], expected)
    torch.testing.assert_close(method._fresh_logits(batches[0][1]), expected, rtol=0, atol=0)
    assert_same_state(before[0], snapshot(method))
    assert torch.equal(method.predict(batches[0][1]), before[1])


def test_a_prediction_follows_the_updates_of_a_fused_optimizer():
    method, batches = build("cattan_plus", classes=False, optimizer="Adam", lr=1e-2, class_change=0.0), target_batches()
    method.prepare(batches)
    x = batches[0][1]
    before = method.predict(x)
    for indices, inputs in batches:
        method(inputs, indices)
    after = method.predict(x)
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(after, method.fold()(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"classes": False}], ids=["classes", "learning"])
def test_a_loader_without_batches_or_that_fails_leaves_no_half_known_target(options):
    method = build("cattan_plus", **options)

    def failing():
        yield target_batches()[0]
        raise OSError("the disk is gone")

    with pytest.raises(UserError, match="no batches were given"):
        method.prepare([])
    assert method.target.known is None
    with pytest.raises(OSError, match="disk is gone"):
        method.prepare(failing())
    assert method.target.known is None and not method.target.domains


def test_episodes_keep_what_is_known_of_the_target():
    method = build("cattan_plus", episodic=True)
    method.prepare(target_batches())
    method(target_batches()[0][1])
    assert method.target.known and method.target.domains
