"""CATTAn against the literal formulas, its source subspaces, its dimension and its online form."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from small_networks import FEATURES, N_CLASSES, build, images, network, run, source_subspace, target_batches
from torch import nn

from tta_cattan import CATTAn, Subspace, UserError, fit_subspace, load_cfg, select_dimension, setup_model
from tta_cattan.alignment import classifier_subspace, orthonormality_error

CENTERINGS = ("pca", "none", "shift")


def batch_features(net, x):
    """Features under batch statistics, by a plain copy of the network."""
    net = copy.deepcopy(net).eval()
    for layer in (net.norm1, net.norm2):
        layer.train()
    return net.features(x)


def literal_loss(net, x, target, source, phi, target_mean, source_mean, reduction, balance, weights=(0.025, 1.0)):
    """``lambda_lr L_lr + L_Phi + lambda_cb L_CB`` as method.md writes it, Z^ in all D dimensions."""
    z = batch_features_with_grad(net, x)
    aligned = (z - target_mean) @ target @ phi @ source.T + source_mean
    logits = aligned @ net.fc.weight.T + (0 if net.fc.bias is None else net.fc.bias)
    ratio = 0
    for row in logits:
        winner = int(row.argmax())
        others = torch.cat([row[:winner], row[winner + 1 :]])
        ratio = ratio - row[winner] + torch.log(torch.exp(others).sum())
    difference = (target @ phi - source) ** 2
    cost = difference.sum() if reduction == "sum" else difference.mean()
    p = torch.softmax(logits, 1)
    mean, prior = p.mean(0), 1 / N_CLASSES
    if balance in ("sum", "mean"):
        terms = -(prior * torch.log(mean) + (1 - prior) * torch.log(1 - mean))
        spread = terms.sum() if balance == "sum" else terms.mean()
    else:
        spread = -(p * torch.log(p)).sum(1).mean() + (mean * torch.log(mean)).sum()
    return logits, weights[0] * ratio / len(x) + cost + weights[1] * spread


def batch_features_with_grad(net, x):
    for layer in (net.norm1, net.norm2):
        layer.train()
    return net.features(x)


@pytest.mark.parametrize(
    ("centering", "basis"),
    [("pca", "data"), ("none", "data"), ("shift", "data"), ("pca", "classifier"), ("none", "classifier")],
)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("balance", ["sum", "mean", "entropy"])
def test_a_step_equals_the_literal_formulas(centering, reduction, basis, balance):
    net, batches = network().double(), [(i, x.double()) for i, x in target_batches()]
    # Random inputs fill many directions: d = 7 of 12 is rectangular against the classifier's 5.
    subspace = source_subspace(net, centering) if basis == "data" else None
    options = {"centering": centering, "align_reduction": reduction, "class_balance": balance, "d": 7}
    method = CATTAn(
        copy.deepcopy(net), source_subspace=subspace, optimizer=lambda p: torch.optim.SGD(p, lr=1e-3), **options
    )
    method.prepare(batches)

    z = torch.cat([batch_features(net, x) for _, x in batches]).detach()
    centred = z - z.mean(0) if centering != "none" else z
    target = torch.linalg.svd(centred, full_matrices=False)[2][:7].T
    if basis == "data":
        source = subspace.basis[:, :7].double()
    else:
        source = torch.linalg.svd(net.fc.weight.detach(), full_matrices=False)[2].T
    assert method.aligned.phi.shape == (7, source.shape[1])
    # The signs of principal directions are free: take the method's, then everything else must agree.
    target = target * (target * method.aligned.target_basis).sum(0).sign()
    source = source * (source * source_of(method)).sum(0).sign()
    torch.testing.assert_close(method.aligned.target_basis, target, rtol=0, atol=1e-5)

    zero = torch.zeros(FEATURES, dtype=torch.float64)
    means = (z.mean(0), subspace.mean.double()) if centering == "shift" else (zero, zero)
    target, source = method.aligned.target_basis.clone(), source_of(method).double()
    with torch.no_grad():  # away from the optimum, where the cost has a gradient
        method.aligned.phi.add_(0.1 * torch.randn(method.aligned.phi.shape, dtype=torch.float64))
    phi = method.aligned.phi.detach().clone().requires_grad_()
    plain = copy.deepcopy(net).requires_grad_(False)
    affines = [*plain.norm1.parameters(), *plain.norm2.parameters()]
    for param in affines:
        param.requires_grad_(True)
    x = batches[0][1]
    logits, loss = literal_loss(plain, x, target, source, phi, *means, reduction, balance)
    gradients = torch.autograd.grad(loss, [*affines, phi])

    params, names = method.collect_params()
    assert names == ["norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "fc.phi"]
    before = [p.detach().clone() for p in params]
    ours, our_loss = method.loss_calculation(x, None)
    torch.testing.assert_close(ours.double(), logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(our_loss.double(), loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(method(x).double(), logits, rtol=1e-5, atol=1e-5)
    for name, param, old, gradient in zip(names, params, before, gradients, strict=True):
        torch.testing.assert_close((old - param.detach()) / 1e-3, gradient, rtol=1e-4, atol=1e-5, msg=name)


def source_of(method):
    """W_s as the method uses it."""
    return method._source_basis(method.aligned.target_basis.shape[1]).double()


@pytest.mark.parametrize("basis", ["data", "classifier"])
@pytest.mark.parametrize("centering", ["pca", "none"])
def test_the_rule_chooses_d_from_both_spectra(centering, basis):
    net, batches = network(), target_batches(64, 16)
    subspace = source_subspace(net, centering, d=10) if basis == "data" else None
    z = torch.cat([batch_features(net, x) for _, x in batches]).detach().double()
    z = z - z.mean(0) if centering == "pca" else z
    eigenvalues = torch.linalg.svdvals(z).square() / (63 if centering == "pca" else 64)
    source = subspace.eigenvalues[:11] if basis == "data" else eigenvalues
    chosen = set()
    for epsilon in (1e2, 1e3, 1e4, 1e5, 1e6):
        method = CATTAn(copy.deepcopy(net), source_subspace=subspace, centering=centering, epsilon=epsilon)
        try:
            expected = select_dimension(source, eigenvalues, 64, epsilon=epsilon)
        except UserError:
            with pytest.raises(UserError, match="stability rule"):
                method.prepare(batches)
            continue
        method.prepare(batches)
        assert method.describe()["d_target"] == expected
        assert method.describe()["d_source"] == (expected if basis == "data" else N_CLASSES)
        chosen.add(expected)
    assert len(chosen) > 1


@pytest.mark.parametrize(
    "optimizer", [lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), lambda p: torch.optim.AdamW(p, lr=1e-2)]
)
def test_works_by_keywords_with_any_optimizer(optimizer):
    net = network()
    method = CATTAn(net, source_subspace=source_subspace(net), d=5, optimizer=optimizer, steps=2)
    x = target_batches()[0][1]
    before = method.predict(x)
    method(x)
    assert type(method.optimizer) is type(optimizer([nn.Parameter(torch.zeros(1))]))
    assert (method.predict(x) - before).abs().max() > 1e-3
    method.reset()
    assert torch.equal(method.predict(x), before)


def test_refuses_a_subspace_of_another_model():
    with pytest.raises(UserError, match=r"of 30 features and the classifier takes 12: .*another\s+model"):
        build("cattan", source_subspace=fit_subspace(torch.randn(90, 30), 6), d=4)


def test_refuses_more_directions_than_the_subspace_has():
    with pytest.raises(UserError, match=r"CATTAN\.D = 9: the source subspace holds 8 directions"):
        build("cattan", d=9)


@pytest.mark.parametrize(("made", "used"), [("pca", "none"), ("none", "pca"), ("none", "shift")])
def test_refuses_the_other_centring(made, used):
    with pytest.raises(UserError, match=f"CENTERING = '{used}', but the source subspace is"):
        build("cattan", source_subspace=source_subspace(network(), made), centering=used, d=4)


def test_refuses_to_shift_without_a_mean():
    subspace = source_subspace(network())
    with pytest.raises(UserError, match=r"'shift' needs the mean source feature.*saved without it"):
        build("cattan", source_subspace=subspace.without_mean(), centering="shift", d=4)
    with pytest.raises(UserError, match=r"'shift' needs the mean source feature.*row space"):
        build("cattan", source_subspace=None, centering="shift", d=4)
    build("cattan", source_subspace=subspace.without_mean(), centering="pca", d=4)


def test_refuses_d_beyond_what_the_target_determines():
    method = build("cattan")
    with pytest.raises(UserError, match=r"d = 6 directions cannot be fitted to 4 samples"):
        method.prepare(target_batches(4, 2))


def test_online_without_d_takes_the_rule_on_the_source_or_the_row_space():
    method = build("cattan", source_subspace=None, d=0)
    method(target_batches()[0][1])
    described = method.describe()
    assert described["d_target"] == described["d_source"] == classifier_subspace(network().fc.weight).d
    method = build("cattan", d=0)
    method(target_batches()[0][1])
    subspace = source_subspace(network())
    assert method.describe()["d_target"] == select_dimension(
        subspace.eigenvalues[: subspace.d + 1], subspace.eigenvalues, subspace.count
    )


@pytest.mark.parametrize("centering", CENTERINGS)
@pytest.mark.parametrize("first", [1, 8])
def test_online_tracks_the_target(centering, first):
    method = build("cattan", centering=centering)
    x = torch.cat([x for _, x in target_batches(200, 8)])
    start = source_subspace(network(), centering).basis[:, :6]
    seen = [start]
    for batch in (x[:first], *x[first:].split(24)):
        assert torch.isfinite(method(batch)).all()
        head = method.aligned
        assert orthonormality_error(head.target_basis) < 1e-5
        torch.testing.assert_close(head.optimum, head.target_basis.T @ start, rtol=0, atol=1e-5)
        assert (head.target_basis - seen[-1]).abs().max() > 1e-5 or (first == 1 and len(seen) == 1)
        seen.append(head.target_basis.clone())
    assert (head.target_mean is not None) == (centering == "shift")
    if centering == "shift":
        torch.testing.assert_close(head.target_mean, method.target.tracker.mean)
        assert head.target_mean.abs().max() > 0.1
    assert method.target.tracker.count == len(x)


def test_online_mixed_precision_keeps_the_basis_orthonormal():
    method = build("cattan", mixed_precision=True)
    run(method, "online")
    assert orthonormality_error(method.aligned.target_basis) < 1e-5


def test_moving_the_target_keeps_what_was_learnt():
    method = build("cattan")
    run(method, "online")
    head, phi = method.aligned, method.aligned.phi.detach().clone()
    rotation = torch.linalg.qr(torch.randn(6, 6))[0]
    old = head.target_basis.clone()
    head.move_target(old @ rotation, source_subspace(network()).basis[:, :6])
    torch.testing.assert_close(head.target_basis @ head.phi, old @ phi, rtol=0, atol=1e-5)
    torch.testing.assert_close(head.optimum, head.target_basis.T @ source_subspace(network()).basis[:, :6])


def test_the_classifier_basis_keeps_the_logits_where_the_target_spans_the_row_space():
    net, batches = network(), target_batches()
    method = build("cattan", net, source_subspace=None, d=FEATURES)
    method.prepare(batches)
    source, x = build("norm", net), batches[0][1]
    torch.testing.assert_close(method.predict(x), source.predict(x), rtol=0, atol=1e-4)
    smaller = build("cattan", net, source_subspace=None, d=3)
    smaller.prepare(batches)
    assert (smaller.predict(x) - source.predict(x)).abs().max() > 1e-2


def test_before_any_target_data_the_head_is_the_plain_classifier():
    x = target_batches()[0][1]
    assert torch.equal(build("cattan").predict(x), build("norm").predict(x))


def test_from_a_config_with_a_file(tmp_path):
    net = network()
    source_subspace(net).save(tmp_path / "source.safetensors")
    overrides = [
        "MODEL.ADAPTATION",
        "cattan",
        "CATTAN.D",
        5,
        "CATTAN.SOURCE_BASIS",
        str(tmp_path / "source.safetensors"),
    ]
    overrides += ["OPTIM.LR", 0.01, "CATTAN.LAMBDA_LR", 0.1]
    method = setup_model(copy.deepcopy(net), load_cfg(None, overrides), num_classes=N_CLASSES)
    twin = CATTAn(copy.deepcopy(net), source_subspace=source_subspace(net), d=5, lambda_lr=0.1, lr=0.01)
    assert torch.equal(run(method, "offline"), run(twin, "offline"))


def test_from_a_config_without_a_subspace():
    with pytest.raises(UserError, match="CATTAn needs a source subspace"):
        setup_model(network(), load_cfg(None, ["MODEL.ADAPTATION", "cattan"]))
    cfg = load_cfg(None, ["MODEL.ADAPTATION", "cattan", "CATTAN.SOURCE_BASIS", "classifier", "CATTAN.D", 5])
    assert setup_model(network(), cfg).describe()["source_basis"] == "classifier"


def test_a_user_made_subspace_is_accepted():
    basis = torch.linalg.qr(torch.randn(FEATURES, 4))[0]
    subspace = Subspace(basis, torch.ones(4), torch.zeros(FEATURES), 10, True)
    method = build("cattan", source_subspace=subspace, d=4)
    assert all(math.isfinite(v) for v in method(images(8, 1)).flatten().tolist())


def test_the_rule_may_choose_every_direction_of_the_file():
    # The gap after the last direction is known, because a file holds more eigenvalues than directions.
    method = build("cattan", source_subspace=source_subspace(network(), d=2), d=0)
    method.prepare(target_batches())
    assert method.describe()["d_target"] == 2


def test_phi_stays_at_its_closed_form_while_nothing_is_learnt():
    method = build("cattan", optimizer=lambda params: torch.optim.SGD(params, lr=0.0))
    for _, x in target_batches(320, 8):
        method(x)
    torch.testing.assert_close(method.aligned.phi, method.aligned.optimum, rtol=0, atol=1e-5)


def test_a_batch_counts_once_however_many_steps():
    once, thrice = (build("cattan", steps=steps) for steps in (1, 3))
    for _, x in target_batches(32, 8):
        once(x)
        thrice(x)
    assert once.target.tracker.count == thrice.target.tracker.count == 32


def test_a_batch_given_again_moves_no_tracker():
    method, batch = build("cattan"), images(8, 0)
    for seed in range(3):
        batch.copy_(images(8, seed))  # a host's buffer: the same tensor, another batch
        for step in range(2):
            method.forward_and_adapt(batch, again=step > 0)
            assert method.new_batch == (step == 0)
    assert method.target.tracker.count == 24


def test_the_running_balance_covers_ten_samples_per_class():
    method = build("cattan", class_balance="running", lambda_lr=0.0, lambda_align=0.0, lambda_cb=2.0, lr=0.0)
    method.prepare(target_batches())
    mean = torch.full((N_CLASSES,), 1 / N_CLASSES, dtype=torch.float64)
    for _, x in target_batches():
        logits, loss = method.loss_calculation(x, None)
        share = min(1, len(x) / (10 * N_CLASSES))
        assert 0 < share < 1
        mean = (1 - share) * mean + share * logits.detach().double().softmax(1).mean(0)
        assert loss.item() == pytest.approx(2 * (mean * (N_CLASSES * mean).log()).sum().item(), rel=1e-3, abs=1e-6)
    method.reset()
    assert method.target.balance.mean is None


@pytest.mark.parametrize("option", ["centering", "align_reduction", "class_balance", "confidence", "statistics"])
def test_a_wrong_choice_is_named(option):
    with pytest.raises(UserError, match=f"{option} = 'foo': must be one of"):
        build("cattan", **{option: "foo"})


def test_a_refused_model_is_left_as_it_was():
    plain = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    with pytest.raises(UserError, match="no normalisation layer"):
        CATTAn(plain)
    assert type(plain[2]) is torch.nn.Linear
