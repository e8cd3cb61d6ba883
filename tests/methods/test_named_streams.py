"""Several streams over one network, and several threads: the answers of separate copies, one after the other."""

from __future__ import annotations

import copy
import io
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from small_networks import METHODS, build, images, target_batches

from tta_cattan.util.errors import UserError
from tta_cattan.util.state import pack

NAMES = ("left", "right", "")
CHANGES = {
    4: lambda method, name, options: restored(method, name, options),
    8: lambda method, name, options: copy.deepcopy(method),
    12: lambda method, name, options: pickle.loads(pickle.dumps(method)),
}


def restored(method, name, options):
    """Return a fresh method with the state of the given one, through a file."""
    file = io.BytesIO()
    torch.save(method.state_dict(), file)
    file.seek(0)
    fresh = build(name, **options)
    with fresh.stream("forgotten"):
        fresh(images(8, 99))
    fresh.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert fresh.streams.names() == method.streams.names()
    return fresh


def tensors(value):
    """Yield the tensors in a packed state."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


@pytest.mark.parametrize("statistics", ["batch", "running", "blend"])
@pytest.mark.parametrize("name", METHODS)
def test_streams_are_separate_copies_bit_for_bit(name, statistics):
    options = {"statistics": statistics, "on_collapse": "reset"}
    alone, method, draw = {stream: build(name, **options) for stream in NAMES}, build(name, **options), random.Random(0)
    for number in range(18):
        method = CHANGES.get(number, lambda method, name, options: method)(method, name, options)
        stream, x = draw.choice(NAMES), images(8, number)
        with method.stream(stream) as inside:
            assert inside is method
            assert torch.equal(method(x), alone[stream](x))
            if number == 10:
                method.reset(), alone[stream].reset()
    for stream, expected in alone.items():
        with method.stream(stream):
            assert torch.equal(method.predict(x), expected.predict(x))
            assert method.describe() == expected.describe()


def test_an_offline_stream_keeps_what_it_prepared():
    method, alone = build("cattan_plus"), build("cattan_plus")
    batches = target_batches()
    alone.prepare(batches)
    with method.stream("offline"):
        method.prepare(batches)
    method(images(8, 1))
    with method.stream("offline"):
        for indices, x in batches:
            assert torch.equal(method(x, indices), alone(x, indices))
        method.finish(batches), alone.finish(batches)
        assert torch.equal(method.predict(batches[0][1]), alone.predict(batches[0][1]))
    assert method.target.classes is None, "the classes belong to the stream"


def test_a_stream_shares_the_frozen_network():
    method = build("cattan")
    frozen = method.model.conv1.weight.data_ptr(), method.model.fc.weight.data_ptr()
    affine = method.model.norm1.weight.data_ptr()
    with method.stream("camera"):
        method(images(8, 1))
        assert (method.model.conv1.weight.data_ptr(), method.model.fc.weight.data_ptr()) == frozen
        assert method.model.norm1.weight.data_ptr() != affine
    (state,) = method.streams.states(method).values()
    assert not [key for key in state if "conv" in key or key.endswith("fc.weight")]
    own = sum(t.numel() for t in tensors(pack(state)))
    assert own < 20 * sum(p.numel() for p in method.collect_params()[0])


def test_a_failure_inside_a_stream_leaves_the_default_in_place():
    method = build("tent")
    x = images(8, 1)
    expected = method.predict(x)
    with pytest.raises(UserError, match="has the type ndarray"), method.stream("camera"):
        method(x)
        method(x.numpy())
    assert torch.equal(method.predict(x), expected) and method.streams.names() == ["camera"]


def test_streams_can_be_dropped_and_have_names():
    method = build("tent")
    with method.stream("camera"):
        method(images(8, 1))
        with pytest.raises(UserError, match="or in use"):
            method.streams.forget("camera")
    method.streams.forget("camera")
    assert method.streams.names() == []
    with method.stream("camera"):
        assert torch.equal(method.predict(images(8, 1)), build("tent").predict(images(8, 1)))
    with pytest.raises(UserError, match="stream 3 is a int"), method.stream(3):
        pass


@pytest.mark.parametrize("name", ["norm", "tent", "shot", "cattan", "cattan_plus"])
def test_threads_get_the_answers_of_one_after_the_other(name):
    # Each thread has its own stream: whatever the order of the threads, the answers are those of separate copies.
    method, batches = build(name), [images(8, seed) for seed in range(6)]
    start = threading.Barrier(4)

    def serve(stream):
        start.wait()
        answers = []
        for x in batches:
            with method.stream(stream):
                answers.append((method.predict(x), method(x)))
            method.state_dict()
        return answers

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(serve, ["a", "b", "c", "d"]))
    alone = build(name)
    expected = [(alone.predict(x), alone(x)) for x in batches]
    for answers in found:
        for (predicted, logits), (also_predicted, also_logits) in zip(answers, expected, strict=True):
            assert torch.equal(predicted, also_predicted) and torch.equal(logits, also_logits)


@pytest.mark.parametrize("name", ["tent", "cattan", "cattan_plus"])
def test_threads_predict_from_one_model_as_one_does(name):
    method, batches = build(name), [images(8, seed) for seed in range(40)]
    method(batches[0])
    expected = [method.predict(x) for x in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(method.predict, batches))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
