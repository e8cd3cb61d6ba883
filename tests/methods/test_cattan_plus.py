"""CATTAn+: the source classifier stays, what Phi learns is added to it."""

from __future__ import annotations

import pytest
import torch
from small_networks import N_CLASSES, build, images, run, target_batches
from torch import nn

from tta_cattan.alignment import classifier_subspace
from tta_cattan.alignment.aligned import AlignedHead


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
    found = [build("cattan_plus", lambda_cb=0.0, class_uniformity=level) for level in (0.0, 1.0)]
    for method in found:
        run(method, "offline")
    assert not found[0].describe()["balanced"]
    torch.testing.assert_close(found[0].target_classes.bias, found[1].target_classes.bias, rtol=0, atol=0)


def test_another_target_has_first_predictions_of_its_own():
    method, other = build("cattan_plus", lr=0.0), build("cattan_plus", lr=0.0)
    method.prepare(skewed())
    for each in (method, other):
        each.prepare(target_batches())
        each.finish(target_batches())
    assert method.target.first.count == other.target.first.count
    method.load_state_dict(build("cattan_plus").state_dict())
    assert method.target.first.count == 0


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


def test_phi_has_a_learning_rate_of_its_own():
    method = build("cattan_plus", lr=1e-2, phi_lr=0.3)
    method.prepare(target_batches())
    rates = {id(p): group["lr"] for group in method.optimizer.param_groups for p in group["params"]}
    assert rates.pop(id(method.aligned.phi)) == pytest.approx(3e-3)
    assert set(rates.values()) == {1e-2} and len(rates) == len(method.collect_params()[0]) - 1
    still = build("cattan_plus", phi_lr=0.0)
    run(still, "offline")
    torch.testing.assert_close(still.aligned.phi, still.aligned.optimum, rtol=0, atol=0)
