"""Checkpoints of models and of streams, drawn at random, damaged and forged."""

from __future__ import annotations

import io
import os
from functools import cache
from typing import Any

import bad_files
import torch
from fuzzing import EDITS, EXACT, FAST, JSON, TEXT, damaged, folder, taken, tensors
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from small_networks import build, images, network
from torch import nn

from tta_cattan.bench.models.checkpoints import load_weights
from tta_cattan.bench.protocols import stream as streams
from tta_cattan.methods.base import AdaptationMethod
from tta_cattan.util.state import load_state, save_state


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


@st.composite
def states(draw) -> dict[str, Any]:
    """A state_dict of ``tiny``, perhaps with other tensors, names and wrappings."""
    state: dict[str, Any] = {}
    for name, value in tiny().state_dict().items():
        kind = draw(st.integers(0, 15))
        prefix = draw(st.sampled_from(["", "", "", "", "module.", "model.", "x."])) if kind == 1 else ""
        if kind != 2:
            state[prefix + name] = draw(tensors(tuple(value.shape))) if value.is_floating_point() else value
        if kind == 3:
            state[prefix + name] = state[prefix + name].to_sparse()
        if kind == 4:
            state[draw(TEXT)] = draw(tensors((2,)) | EXACT)
    return state


WRAPPERS = st.sampled_from([None, None, "state_dict", "model", "net", "epoch"])


@FAST
@given(states(), st.sampled_from(["zip", "legacy", "safetensors"]), WRAPPERS, EDITS, st.booleans())
def test_a_checkpoint_is_loaded_as_it_is_or_refused(state, form, wrapper, edits, harmed):
    with folder() as here:
        path = here / ("w.safetensors" if form == "safetensors" else "w.pt")
        if form == "safetensors":
            dense = {n: v.to_dense().contiguous() for n, v in state.items() if isinstance(v, torch.Tensor)}
            save_file(dense, path)
        else:
            content = io.BytesIO()
            wrapped = {wrapper: state} if wrapper else state
            torch.save(wrapped, content, _use_new_zipfile_serialization=form == "zip")
            path.write_bytes(content.getvalue())
        if harmed:
            path.write_bytes(damaged(path.read_bytes(), edits))
        model, before = tiny(), tiny().state_dict()
        try:
            done = taken(lambda: [load_weights(model, path)]) is not None
        finally:
            assert not os.listdir(here)[1:], "nothing else was written"
    after = model.state_dict()
    if not done:
        assert all(torch.equal(after[name], before[name]) for name in before), "a refused file changes nothing"
        return
    assert all(value.isfinite().all() for value in after.values()) and (after["1.running_var"] >= 0).all()
    if form == "zip" or not harmed:  # a zip file has checksums
        given_ = {name.removeprefix("module.").removeprefix("model."): value for name, value in state.items()}
        same = [torch.equal(after[n], given_[n].to_dense().to(after[n].dtype)) for n in after if n in given_]
        assert all(same) and len(same) >= len(after) - 1


@st.composite
def changed(draw, value: Any, depth: int = 0) -> Any:
    """A state with one of its parts replaced, or as it is."""
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(value, key=str)))
        if draw(st.integers(0, 4)) == 0:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: draw(changed(value[key], depth + 1))}
    if isinstance(value, (list, tuple)) and value and draw(st.integers(0, 9)):
        place = draw(st.integers(0, len(value) - 1))
        return type(value)([*value[:place], draw(changed(value[place], depth + 1)), *value[place + 1 :]])
    return draw(JSON | tensors((3,)) | st.just(value))


X, NET = images(24, 1), network()


def adapted(batches: int) -> tuple[AdaptationMethod, streams.StreamEvaluation]:
    """A method after some batches, and its evaluation as far as a checkpoint sees it."""
    method, evaluation = build("tent", NET), streams.StreamEvaluation(None)  # the plan is for the end of a stream
    for number in range(batches):
        evaluation.add(torch.arange(8), method(X[8 * number : 8 * number + 8]), torch.zeros(8, dtype=torch.long))
    return method, evaluation


@cache
def checkpoint() -> tuple[bytes, tuple[torch.Tensor, ...], torch.Tensor]:
    """A checkpoint of a stream, the predictions in it, and the logits that come next."""
    method, evaluation = adapted(2)
    with folder() as here:
        streams._save(here / "c.pt", method, evaluation, 2, 1.0, None)
        return (here / "c.pt").read_bytes(), evaluation.parts(), method.predict(X)


@FAST
@given(EDITS)
def test_a_checkpoint_of_a_stream_goes_on_bit_for_bit_or_starts_again(edits):
    whole, parts, logits = checkpoint()
    method, evaluation = adapted(0)
    before = {name: value.clone() for name, value in method.state_dict().items() if isinstance(value, torch.Tensor)}
    with folder() as here:
        path = bad_files.text(here / "c.pt", damaged(whole, edits))
        done = streams._resume(path, method, evaluation, None)
    if damaged(whole, edits) == whole:
        assert done == 2 and all(map(torch.equal, evaluation.parts(), parts))
        assert torch.equal(method.predict(X), logits)
    else:
        assert done == 0 and evaluation.count == 0
        assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items() if name in before)


@FAST
@given(st.data())
def test_a_forged_checkpoint_of_a_stream_is_taken_or_refused(data):
    with folder() as here:
        path = bad_files.text(here / "c.pt", checkpoint()[0])
        state = data.draw(changed(load_state(path)))
        save_state(path, state if isinstance(state, dict) else {"done": state})
        taken(streams._resume, path, *adapted(0), None)
