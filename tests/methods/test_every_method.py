"""What holds for every method under both protocols: reset, copies, states, modes, what is frozen and what moves."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from small_networks import (
    ADAPTING,
    METHODS,
    assert_same_state,
    build,
    network,
    run,
    snapshot,
    source_subspace,
    target_batches,
)

from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.network.normalization import affine_parameters

PROTOCOLS = ("offline", "online")
each_method = pytest.mark.parametrize("name", METHODS)
each_adapting = pytest.mark.parametrize("name", ADAPTING)
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def test_the_registered_methods_are_those_of_the_paper():
    assert set(METHODS) <= set(ADAPTATION_REGISTRY.registered_names())


@each_method
@each_protocol
@pytest.mark.parametrize("statistics", ["batch", "source", "running", "blend"])
def test_reset_restores_the_source_state_bit_for_bit(name, protocol, statistics):
    method = build(name, statistics=statistics)
    x = target_batches()[0][1]
    before, predictions = snapshot(method.model), method.predict(x)
    first = run(method, protocol)
    if name in ADAPTING:
        assert any(not torch.equal(before[k], v) for k, v in method.model.state_dict().items() if k in before)
    method.reset()
    assert_same_state(before, snapshot(method.model))
    assert torch.equal(method.predict(x), predictions)
    assert torch.equal(run(method, protocol), first)


@each_adapting
@each_protocol
def test_adaptation_changes_predictions(name, protocol):
    method = build(name)
    x = target_batches()[0][1]
    before = method.predict(x)
    run(method, protocol)
    assert (method.predict(x) - before).abs().max() > 1e-3


@each_method
@each_protocol
def test_a_deep_copy_is_equal_and_independent(name, protocol):
    method = build(name)
    run(method, protocol)
    state, twin = snapshot(method), copy.deepcopy(method)
    assert_same_state(state, snapshot(twin))
    more = target_batches(seed=8)
    expected = torch.cat([twin(x) for _, x in more])
    assert_same_state(state, snapshot(method))
    assert torch.equal(torch.cat([method(x) for _, x in more]), expected)
    twin.reset()
    assert torch.equal(twin.predict(more[0][1]), build(name).predict(more[0][1]))


@each_method
def test_a_pickle_is_equal(name):
    method, x = build(name), target_batches()[0][1]
    run(method, "online")
    twin = pickle.loads(pickle.dumps(method))
    assert torch.equal(twin.predict(x), method.predict(x))
    assert torch.equal(twin(x), method(x))
    assert torch.equal(twin.predict(x), method.predict(x))


@each_method
@each_protocol
def test_state_dict_goes_into_a_fresh_method(name, protocol):
    method, x = build(name), target_batches()[0][1]
    run(method, protocol)
    torch.manual_seed(99)
    fresh = build(name)
    fresh.load_state_dict(method.state_dict(), strict=True)
    assert torch.equal(fresh.predict(x), method.predict(x))
    assert_same_state(snapshot(method), snapshot(fresh))
    fresh.reset()
    assert torch.equal(fresh.predict(x), build(name).predict(x))


@each_protocol
@pytest.mark.parametrize("d", [4, 8])
@pytest.mark.parametrize("used", [False, True])
def test_cattan_takes_a_state_of_other_dimensions(protocol, d, used):
    method, other, x = build("cattan"), build("cattan", d=d), target_batches()[0][1]
    run(method, protocol)
    if used:
        run(other, protocol)
    other.load_state_dict(method.state_dict(), strict=True)
    assert torch.equal(other.predict(x), method.predict(x))
    phi = other.aligned.phi.clone()
    assert phi.shape == (6, 6)
    other(x)
    assert not torch.equal(other.aligned.phi, phi), "the loaded Phi is not adapted"


def test_a_state_loaded_into_the_inner_model_is_adapted_too():
    method, other, x = build("cattan"), build("cattan", d=4), target_batches()[0][1]
    run(method, "offline")
    other.model.load_state_dict(method.model.state_dict(), strict=True)
    phi = other.aligned.phi.clone()
    other(x)
    assert not torch.equal(other.aligned.phi, phi)


@pytest.mark.parametrize("centering", ["pca", "shift"])
def test_the_adapted_network_of_cattan_fits_into_a_safetensors_file(tmp_path, centering):
    from safetensors.torch import load_file, save_file

    method, x = build("cattan", centering=centering), target_batches()[0][1]
    run(method, "online")
    save_file(method.model.state_dict(), tmp_path / "state.safetensors")
    fresh = build("cattan", centering=centering)
    fresh.model.load_state_dict(load_file(tmp_path / "state.safetensors"), strict=True)
    assert torch.equal(fresh.predict(x), method.predict(x))


@each_method
@each_protocol
def test_modes_change_nothing(name, protocol):
    expected = run(build(name), protocol)
    for change in (
        lambda m: m.eval(),
        lambda m: m.train(),
        lambda m: m.model.eval(),
        lambda m: m.model.train(),
        lambda m: m.to("cpu"),
    ):
        method = build(name)
        change(method)
        batches = target_batches()
        if protocol == "offline":
            method.prepare(batches)
            change(method)
            method.start_epoch(batches)
        logits = []
        for indices, x in batches:
            change(method)
            logits.append(method(x, indices if protocol == "offline" else None))
        assert torch.equal(torch.cat(logits), expected[:40])
        change(method)
        assert torch.equal(method.predict(batches[0][1]), method.predict(batches[0][1]))


def test_train_and_eval_set_the_wrapper_alone():
    method = build("tent")
    assert method.eval().training is False
    assert method.train().training is True


@each_adapting
@each_protocol
def test_adapts_under_no_grad(name, protocol):
    expected = run(build(name), protocol)
    with torch.no_grad():
        assert torch.equal(run(build(name), protocol), expected)


@each_method
@each_protocol
def test_only_what_is_collected_moves(name, protocol):
    net = network()
    method = build(name, net, **({"class_change": 0.0, "classes": False} if name == "cattan_plus" else {}))
    frozen = dict(net.named_parameters())
    run(method, protocol)
    params, names = method.collect_params()
    assert len(params) == len(names) == len(set(names))
    affine = {n for n in frozen if n.startswith("norm")}
    learns = name in ADAPTING or (name, protocol) == ("cattan_plus", "offline")
    transformed = name == "ip"
    inner = dict(method.network.named_parameters())
    for param_name, value in frozen.items():
        moved = not torch.equal(inner[param_name], value)
        assert moved == (learns and param_name in affine), param_name
    for param_name, param in method.model.named_parameters():
        assert param.grad is None
        assert not params or param.requires_grad == any(param is p for p in params), param_name
    prefix = "model." if transformed else ""
    if learns:
        assert {prefix + n for n in affine} <= set(names)
        rest = set(names) - {prefix + n for n in affine}
        transform = {n for n in rest if n.startswith("transform.")}
        assert bool(transform) == transformed
        assert rest - transform == ({f"{prefix}fc.phi"} if name == "cattan" else set())
    else:
        assert not names


@each_method
def test_a_float64_model_works(name):
    double = run(build(name, network().double()), "online", [(i, x.double()) for i, x in target_batches()])
    torch.testing.assert_close(double.float(), run(build(name), "online"), rtol=0, atol=1e-4)


@each_method
@each_protocol
@pytest.mark.parametrize("statistics", ["batch", "running", "blend"])
def test_mixed_precision_stays_close(name, protocol, statistics):
    mixed = build(name, lr=1e-3, mixed_precision=True, statistics=statistics)
    logits, expected = run(mixed, protocol), run(build(name, lr=1e-3, statistics=statistics), protocol)
    assert logits.dtype == torch.float32
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(v).all() for v in mixed.model.state_dict().values())
    assert (logits - expected).abs().max() < 0.05 * expected.abs().max()
    assert not torch.equal(logits, expected), "autocast did nothing"


@each_adapting
def test_steps_below_one_are_refused(name):
    with pytest.raises(ValueError, match="steps = 0"):
        build(name, steps=0)


@each_adapting
def test_several_steps_go_further(name):
    x = target_batches()[0][1]
    once, thrice = build(name), build(name, steps=3)
    once(x), thrice(x)
    start = affine_parameters(network())[0]
    moved = [
        sum((p - s).abs().sum() for p, s in zip(m.collect_params()[0], start, strict=False)) for m in (once, thrice)
    ]
    assert moved[1] > 1.5 * moved[0]


def test_cattan_leaves_the_subspace_it_was_given_alone():
    subspace = source_subspace(network())
    basis = subspace.basis.clone()
    run(build("cattan", source_subspace=subspace, d=6), "online")
    assert torch.equal(subspace.basis, basis)
