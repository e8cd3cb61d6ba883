"""The state of a method: all of it, through a file, and what follows is the same bit for bit."""

from __future__ import annotations

import io

import pytest
import torch
from small_networks import assert_same_state, build, images, network, run, snapshot, target_batches

from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.util.errors import UserError
from tta_cattan.util.state import pack, unpack

METHODS = ADAPTATION_REGISTRY.registered_names()
OPTIONS = {"cattan_plus": {"mirror": True}, "tent_plus": {"class_balance": "running"}}


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def loaded(name, state, **options):
    method = build(name, **options)
    method.load_state_dict(state, strict=True)
    return method


@pytest.mark.parametrize("statistics", ["batch", "running"])
@pytest.mark.parametrize("name", METHODS)
def test_a_restored_stream_goes_on_bit_for_bit(name, statistics):
    options = {**OPTIONS.get(name, {}), "statistics": statistics, "on_collapse": "reset"}
    undisturbed = build(name, **options)
    stream = [images(8, seed) for seed in range(20, 30)]
    for x in stream[:5]:
        undisturbed(x)
    other = loaded(name, through_a_file(undisturbed.state_dict()), **options)
    for x in stream[5:]:
        assert torch.equal(undisturbed(x), other(x))
    assert undisturbed.describe() == other.describe()
    assert torch.equal(undisturbed.predict(stream[0]), other.predict(stream[0]))
    other.reset()
    fresh = build(name, **options)
    fresh.reset()
    assert torch.equal(other(stream[0]), fresh(stream[0])), "reset goes back to the source, not to the loaded state"


@pytest.mark.parametrize("name", METHODS)
def test_a_restored_epoch_goes_on_bit_for_bit(name):
    batches = target_batches()
    undisturbed = build(name)
    run(undisturbed, "offline", batches, epochs=1)
    undisturbed.start_epoch(batches)
    for indices, x in batches[:2]:
        undisturbed(x, indices)
    other = loaded(name, through_a_file(undisturbed.state_dict()))
    for indices, x in batches[2:]:
        assert torch.equal(undisturbed(x, indices), other(x, indices))
    for method in (undisturbed, other):
        method.finish(batches)
    assert torch.equal(undisturbed.predict(batches[0][1]), other.predict(batches[0][1]))
    assert undisturbed.describe() == other.describe()


def test_a_loaded_state_is_not_changed_by_what_follows():
    method = build("cattan")
    method(images(8, 1))
    state = through_a_file(method.state_dict())
    before = through_a_file(state)
    loaded("cattan", state)(images(8, 2))
    one, other = loaded("cattan", state), loaded("cattan", before)
    assert torch.equal(one(images(8, 3)), other(images(8, 3)))


@pytest.mark.parametrize("name", ["tent", "ip", "shot"])
def test_a_state_brings_its_network_along(name):
    # As after a restart that builds the architecture and no weights.
    method, other = build(name), build(name, network(seed=4))
    method(images(8, 1))
    other.load_state_dict(through_a_file(method.state_dict()))
    for seed in range(2, 5):
        assert torch.equal(method(images(8, seed)), other(images(8, seed)))
    method.reset(), other.reset()
    assert torch.equal(method(images(8, 1)), other(images(8, 1)))


@pytest.mark.parametrize(("name", "other"), [("tent", "cattan_plus"), ("cattan_plus", "tent"), ("norm", "shot")])
def test_the_state_of_another_method_is_refused_and_changes_nothing(name, other):
    writer, method = build(name), build(other, network(seed=4))
    writer(images(8, 1))
    before = snapshot(method)
    with pytest.raises(
        UserError, match=f"state is of method = '{type(writer).__name__}', and here it is '{type(method).__name__}'"
    ):
        method.load_state_dict(through_a_file(writer.state_dict()))
    assert_same_state(before, snapshot(method))
    assert torch.isfinite(method(images(8, 2))).all()


def test_the_state_of_the_network_alone_restarts_the_rest():
    method, other = build("tent", network()), build("tent", network())
    method(images(8, 1))
    state = {name: value for name, value in method.state_dict().items() if name != "_extra_state"}
    other.load_state_dict(state, strict=False)
    assert other.optimizer.state_dict()["state"] == {}
    assert torch.equal(other.predict(images(8, 2)), method.predict(images(8, 2)))


def test_unknown_objects_are_neither_packed_nor_built():
    with pytest.raises(TypeError, match="object is not registered"):
        pack({"a": object()})
    with pytest.raises(UserError, match="the state holds a 'Popen'"):
        unpack({"kind": "Popen", "items": {}})
    for other in ({"a": 1}, object()):
        with pytest.raises(UserError, match="where state_dict"):
            unpack(other)
    nested = {"a": [1, (2.5, None)], 3: torch.arange(3)}
    back = unpack(pack(nested))
    assert back["a"] == [1, (2.5, None)] and torch.equal(back[3], nested[3])
