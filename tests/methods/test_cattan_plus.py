"""CATTAn+: the source classifier stays, what Phi learns is added to it."""

from __future__ import annotations

import pytest
import torch
from small_networks import N_CLASSES, build, images, network, run, target_batches
from torch import nn

from tta_cattan.alignment import classifier_subspace, fit_class_structure
from tta_cattan.alignment.aligned import AlignedHead
from tta_cattan.network.mirror import with_mirror_images
from tta_cattan.util.errors import UserError


def residual_head(d=6, bias=True):
    torch.manual_seed(0)
    linear = nn.Linear(12, N_CLASSES, bias=bias)
    head = AlignedHead(linear, residual=True)
    target = torch.linalg.qr(torch.randn(12, d))[0]
    source = classifier_subspace(linear.weight).basis
    head.align(target, source)
    return linear, head, target, source


@pytest.mark.parametrize("bias", [True, False])
def test_the_residual_head_is_the_formula(bias):
    linear, head, target, source = residual_head(bias=bias)
    z = torch.randn(7, 12)
    torch.testing.assert_close(head(z), linear(z), msg="at Phi* it is the source classifier")
    with torch.no_grad():
        head.phi.add_(torch.randn_like(head.phi))
    learnt = target @ (head.phi - target.T @ source) @ source.T  # D x D, formed here only
    torch.testing.assert_close(head(z), linear(z + z @ learnt), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.fold()(z), head(z), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("protocol", ["offline", "online"])
def test_it_starts_as_the_source_model(protocol):
    method, norm = build("cattan_plus", lr=0.0, classes=False), build("norm", statistics="blend")
    run(method, protocol)
    for _, x in target_batches():
        torch.testing.assert_close(method.predict(x), norm.predict(x), rtol=1e-4, atol=1e-5)
    assert method.aligned.enabled


def test_d_is_64_or_all_features():
    assert build("cattan_plus").d == 12
    assert build("cattan_plus", d=3).d == 3


def test_the_loss_is_ratio_alignment_and_running_balance():
    options = {"lambda_lr": 0.5, "lambda_cb": 2.0, "lambda_align": 3.0, "kappa": 0.8, "balance_guard": False}
    method = build("cattan_plus", lr=0.0, **options)
    method.prepare(target_batches())
    with torch.no_grad():
        method.aligned.phi.add_(0.1)
    running = torch.full((N_CLASSES,), 1 / N_CLASSES, dtype=torch.float64)
    for _, x in target_batches():
        method.new_batch = True
        logits = method.predict(x)
        p = logits.double().softmax(1).mean(0)
        running = 0.8 * running + 0.2 * p
        top = logits.double().max(1)
        rest = logits.double().clone()
        rest[torch.arange(len(x)), top.indices] = -torch.inf
        ratio = (rest.logsumexp(1) - top.values).mean()
        cost = (method.aligned.target_basis @ method.aligned.phi - method.source.basis).double().square().mean()
        expected = 0.5 * ratio + 3 * cost + 2 * (running * (running * N_CLASSES).log()).sum()
        assert method.loss(logits).item() == pytest.approx(expected.item(), rel=1e-5)


def test_without_the_transformation_it_folds_and_with_it_says_so():
    method = build("cattan_plus", transform=False, statistics="source")
    run(method, "offline")
    plain = method.fold()
    assert type(plain) is type(network())
    for _, x in target_batches(seed=8):
        torch.testing.assert_close(plain(x), method.predict(x), rtol=1e-4, atol=1e-4)
    for options in ({}, {"transform": False, "mirror": True}):
        with pytest.raises(UserError, match=r"CATTAN_PLUS\.TRANSFORM False and CATTAN_PLUS\.MIRROR False"):
            build("cattan_plus", **options).fold()


def adapted(**options):
    """Return CATTAn+ after the offline protocol."""
    method = build("cattan_plus", **options)
    run(method, "offline")
    return method


@pytest.mark.parametrize("mirror", [True, False])
def test_in_the_end_predictions_know_the_targets_classes(mirror):
    method, plain = adapted(mirror=mirror), adapted(mirror=mirror, classes=False)
    seen = [plain.logits_and_features(x, adapting=False) for _, x in target_batches()]
    logits = torch.cat([y for y, _ in seen])
    features = torch.cat(
        [(z[: len(y)] + z[-len(y) :]) / 2 for y, z in seen]
    )  # the mean of both views, if there are two
    basis = plain.aligned.target_basis
    first = torch.cat([build("cattan_plus", mirror=mirror).predict(x) for _, x in target_batches()])
    changed = (first.argmax(1) != logits.argmax(1)).double().mean().item()
    assert method.describe()["changed"] == changed > 0
    known = len(logits) / (len(logits) + 10 * N_CLASSES)
    rho = known * changed**2 / (changed**2 + 0.05**2)
    level = 0.5 * rho if method.describe()["balanced"] else 0.0
    weight, offset, temperature = fit_class_structure(features @ basis, logits, rho, 0.3, level)
    expected = temperature * (logits + features @ basis @ weight + offset)
    found = torch.cat([method.predict(x) for _, x in target_batches()])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(found, logits, atol=1e-2)


def test_the_targets_classes_go_with_reset_and_travel_with_the_state():
    method, x = adapted(), images(8, 5)
    with_classes = method.predict(x)
    fresh = build("cattan_plus")
    fresh.load_state_dict(method.state_dict(), strict=True)
    torch.testing.assert_close(fresh.predict(x), with_classes, rtol=0, atol=0)
    fresh.load_state_dict(build("cattan_plus").state_dict(), strict=True)
    assert fresh.target_classes.weight is None
    source = build("cattan_plus").predict(x)
    method.reset()
    torch.testing.assert_close(method.predict(x), source, rtol=0, atol=0)


def test_what_is_not_finite_has_no_say_in_the_classes():
    method, batches = adapted(statistics="source"), target_batches()
    expected = method.target_classes.weight.clone()
    spoilt = images(1, 9).fill_(float("nan"))
    method.finish([*batches, (torch.tensor([len(batches)]), spoilt)])
    torch.testing.assert_close(method.target_classes.weight, expected, rtol=1e-4, atol=1e-5)
    method.finish([(torch.tensor([0]), spoilt)])
    assert method.target_classes.weight is None


def test_where_nothing_changed_the_classes_are_not_heard():
    method = adapted(lr=0.0)
    assert method.describe()["changed"] == 0.0
    for _, x in target_batches():
        torch.testing.assert_close(method.predict(x), method.logits_and_features(x, adapting=False)[0])


def skewed(n=6):
    """Return batches of one image over and over, with a little noise: no balance of classes."""
    torch.manual_seed(5)
    return [(torch.arange(8 * i, 8 * i + 8), images(1, 3) + 0.01 * torch.randn(8, 3, 8, 8)) for i in range(n)]


@pytest.mark.parametrize("protocol", ["offline", "online"])
def test_a_balance_that_the_first_predictions_refute_is_left_out(protocol):
    def losses(**options):
        method = build("cattan_plus", lr=0.0, statistics="source", lambda_lr=0.0, lambda_align=0.0, **options)
        with torch.no_grad():
            method.aligned.weight.mul_(50)  # sure of itself
        batches = skewed()
        if protocol == "offline":
            method.prepare(batches)
        found = []
        for indices, x in batches:
            logits = method(x, indices)
            method.new_batch = False
            found.append(method.loss(logits).item())
        return found, method.describe()["balanced"]

    found, balanced = losses()
    assert not balanced and found[-1] == 0
    if protocol == "offline":
        assert not any(found), "known from the first step on"
    kept, _ = losses(balance_guard=False)
    assert kept[-1] > 1


def test_without_a_balance_in_the_loss_the_classes_are_not_levelled():
    found = [adapted(lambda_cb=0.0, class_uniformity=level) for level in (0.0, 1.0)]
    assert not found[0].describe()["balanced"]
    torch.testing.assert_close(found[0].target_classes.bias, found[1].target_classes.bias, rtol=0, atol=0)


def test_another_target_has_first_predictions_of_its_own():
    method, other = build("cattan_plus", lr=0.0), build("cattan_plus", lr=0.0)
    method.prepare(skewed())
    for each in (method, other):
        each.prepare(target_batches())
        each.finish(target_batches())
    assert method.target.first.count == other.target.first.count and method.describe()["changed"] == 0.0
    method.load_state_dict(build("cattan_plus").state_dict())
    assert method.target.first.count == 0 and "changed" not in method.describe()


def test_a_restart_keeps_what_was_known_of_the_balance():
    method = build("cattan_plus", statistics="source")
    with torch.no_grad():
        method.aligned.weight.mul_(50)
    method.prepare(skewed())
    assert not method.describe()["balanced"]
    method.reset(keep_known=True)
    assert not method.describe()["balanced"]
    method.reset()
    assert method.describe()["balanced"], "nothing is known of the next target"


@pytest.mark.parametrize("option", ["class_shrinkage", "class_uniformity"])
def test_a_share_is_not_more_than_all(option):
    with pytest.raises(UserError, match=f"{option} = 2"):
        build("cattan_plus", **{option: 2})


def test_bypassing_leaves_out_both_ends():
    method = build("cattan_plus", lr=0.05, statistics="batch")
    run(method, "offline")
    x = images(8, 5)
    bypassed = method.predict_bypassed(x)
    plain = method.model.model
    assert not torch.allclose(bypassed, method.predict(x))
    method.aligned.enabled = False
    torch.testing.assert_close(bypassed, plain(x).detach())


def test_phi_has_a_learning_rate_of_its_own():
    method = build("cattan_plus", lr=1e-2, phi_lr=0.3)
    method.prepare(target_batches())
    rates = {id(p): group["lr"] for group in method.optimizer.param_groups for p in group["params"]}
    assert rates.pop(id(method.aligned.phi)) == pytest.approx(3e-3)
    assert set(rates.values()) == {1e-2} and len(rates) == len(method.collect_params()[0]) - 1
    still = build("cattan_plus", phi_lr=0.0)
    run(still, "offline")
    torch.testing.assert_close(still.aligned.phi, still.aligned.optimum, rtol=0, atol=0)


def test_the_mirror_makes_one_prediction_of_two_views():
    method, plain = (build("cattan_plus", mirror=mirror, lr=0.0, statistics="batch") for mirror in (True, False))
    x = images(8, 5)
    both = plain.predict(torch.cat([x, torch.from_numpy(x.numpy()[..., ::-1].copy())])).double().softmax(1)
    mean = (both[:8] + both[8:]) / 2
    torch.testing.assert_close(method.predict(x).double().exp(), mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(method.predict(x.flip(-1)), method.predict(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(method(x), method.predict(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("protocol", ["offline", "online"])
def test_adaptation_sees_the_mean_of_both_views(protocol):
    def adapted(flip):
        method = build("cattan_plus", mirror=True, lr=0.02)
        batches = [(indices, x.flip(-1) if flip else x) for indices, x in target_batches()]
        if protocol == "offline":
            method.prepare(batches)
        outputs = torch.cat([method(x, indices) for indices, x in batches])
        return outputs, method.predict(batches[0][1])

    for ours, mirrored in zip(adapted(False), adapted(True), strict=True):
        torch.testing.assert_close(ours, mirrored, rtol=1e-3, atol=1e-4, msg="a mirrored stream adapts the same way")


@pytest.mark.parametrize("mirror", [True, False])
def test_one_image_is_normalised_by_the_sources_statistics(mirror):
    x = images(1, 5)
    method, source = (build("cattan_plus", mirror=mirror, lr=0.0, statistics=mode) for mode in ("blend", "source"))
    torch.testing.assert_close(method.predict(x), source.predict(x), rtol=0, atol=0)
    torch.testing.assert_close(method(x), source(x), rtol=0, atol=0)
    assert not torch.equal(method.predict(images(2, 5)), source.predict(images(2, 5))), "two have their own"


def test_what_is_no_image_is_not_mirrored():
    with pytest.raises(UserError, match=r"shape \(4, 7\).*MIRROR False"):
        with_mirror_images(torch.zeros(4, 7))
