"""Adaptation that goes wrong: skipped, found, told, and undone bit for bit."""

from __future__ import annotations

import logging
import math
from functools import partial

import pytest
import torch
from small_networks import ADAPTING, assert_same_state, build, images, many_classes, run, snapshot, target_batches

from tta_cattan import UserError
from tta_cattan.config import load_cfg
from tta_cattan.methods import AdaptationMethod, setup_model
from tta_cattan.methods import safety as safety_module
from tta_cattan.methods.safety import Collapse, Safety, effective_classes, in_range, overturned
from tta_cattan.monitor.watch import Tap
from tta_cattan.util.state import pack, unpack

NOTHING = {"skipped_steps": 0, "collapses": 0, "divergences": 0, "safety_resets": 0}
each_adapting = pytest.mark.parametrize("name", ADAPTING)
each_protocol = pytest.mark.parametrize("protocol", ["offline", "online"])
each_statistics = pytest.mark.parametrize("statistics", ["batch", "source", "running", "blend"])


def counts(method: AdaptationMethod) -> dict[str, int]:
    return {key: value for key, value in method.describe().items() if key in NOTHING}


def assert_finite(method: AdaptationMethod) -> None:
    assert all(torch.isfinite(value).all() for value in snapshot(method).values())
    moments = [v for state in method.optimizer.state.values() for v in state.values() if torch.is_tensor(v)]
    assert all(torch.isfinite(value).all() for value in moments)


def assert_same_calibration(method: AdaptationMethod, other: AdaptationMethod) -> None:
    one, two = (method.target.calibration for method in (method, other))
    assert one.count == two.count and one.mean.keys() == two.mean.keys()
    assert all(torch.equal(one.mean[place], two.mean[place]) for place in one.mean)


def assert_resets(method: AdaptationMethod, start: dict[str, torch.Tensor]) -> None:
    method.reset()
    assert_same_state(start, snapshot(method.model))
    assert not method.optimizer.state


@each_adapting
@each_protocol
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_a_run_that_goes_well_raises_no_alarm(name, protocol, batch):
    method = build(name, many_classes(), lr=1e-3)
    run(method, protocol, target_batches(20 * batch, batch), epochs=3)
    assert counts(method) == NOTHING


@each_adapting
@each_statistics
@each_protocol
def test_a_comparison_with_the_fresh_method_changes_nothing(name, statistics, protocol, monkeypatch):
    found = []
    for every in (1, 10**9):
        monkeypatch.setattr(safety_module, "_EVERY", every)
        method = build(name, statistics=statistics, on_collapse="report", mirror=True, steps=2)
        found.append((run(method, protocol), snapshot(method), torch.get_rng_state(), method))
    (logits, state, generator, compared), (others, other, same, alone) = found
    assert torch.equal(logits, others) and torch.equal(generator, same)
    assert_same_state(other, state)
    assert_same_calibration(compared, alone)


@each_adapting
@each_protocol
def test_the_fresh_method_is_the_one_after_a_reset(name, protocol):
    method, batches = build(name, lr=0.1), target_batches()
    run(method, protocol, batches)
    before, x = snapshot(method.model), images(8, 3)
    with method.at_start(), torch.no_grad():
        fresh = method.infer(x, adapting=True)
    assert_same_state(before, snapshot(method.model))
    method.reset(keep_known=True)
    with torch.no_grad():
        torch.testing.assert_close(method.infer(x, adapting=True), fresh, rtol=0, atol=0)


def test_a_monitor_sees_the_pass_that_adapts(monkeypatch):
    monkeypatch.setattr(safety_module, "_EVERY", 1)
    method, x = build("tent"), images(8, 3)
    for _ in range(5):
        method(x)
    expected = Tap(method)(method.predict, x)[1]
    assert torch.equal(Tap(method)(method, x)[1], expected)


@each_adapting
@each_statistics
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1e30])
def test_a_gradient_that_is_not_finite_moves_nothing(name, statistics, bad):
    method = build(name, statistics=statistics)
    start, (first, second, third) = snapshot(method.model), [x for _, x in target_batches()[:3]]
    method(first)
    before = snapshot(method.model)
    hook = method.collect_params()[0][0].register_hook(lambda grad: torch.full_like(grad, bad))
    logits = method(second)
    hook.remove()
    assert torch.isfinite(logits).all() and counts(method) == {**NOTHING, "skipped_steps": 1}
    moved = {key for key, value in method.model.state_dict().items() if not torch.equal(value, before[key])}
    # Finite features are absorbed by the tracker all the same.
    head = "fc" if name == "cattan" else ""
    assert moved == ({f"{head}.{part}" for part in ("phi", "target_basis", "optimum")} if head else set())
    method(third)
    assert counts(method)["skipped_steps"] == 1
    assert_finite(method)
    assert_resets(method, start)


@each_adapting
@each_statistics
@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), 1e30, 1e38])
def test_a_spoilt_batch_leaves_a_finite_state(name, statistics, bad):
    method, batches = build(name, statistics=statistics), [x.clone() for _, x in target_batches()]
    start = snapshot(method.model)
    batches[1][3] = bad
    batches[2][:] = bad
    for x in batches:
        method(x)
        assert_finite(method)
    assert counts(method)["divergences"] == 0, "spoilt data does not speak against the model"
    assert torch.isfinite(method.predict(batches[-1])).all()
    assert_resets(method, start)


@each_adapting
def test_parameters_that_leave_the_range_start_anew(name, caplog):
    method = build(name, optimizer=partial(torch.optim.SGD, lr=1e36))
    start = snapshot(method.model)
    with caplog.at_level(logging.WARNING, "tta_cattan"):
        run(method, "online")
    found = counts(method)
    assert found["divergences"] == found["safety_resets"] >= 1
    assert "the parameters left the finite range" in caplog.text
    assert_finite(method)
    assert_resets(method, start)


@pytest.mark.parametrize("reaction", ["report", "reset"])
def test_a_collapse_is_found_and_answered_by_the_key(reaction, caplog):
    method = build("tent", many_classes(), lr=3.0, on_collapse=reaction)
    start = snapshot(method.model)
    with caplog.at_level(logging.WARNING, "tta_cattan"):
        for _, x in target_batches(2000, 32):
            before = snapshot(method.model)
            logits = method(x)
            if method.safety.collapses:
                break
    assert "adaptation collapses: predictions that the fresh model is sure of are overturned" in caplog.text
    assert len(logits.argmax(1).unique()) <= 2
    assert counts(method) == {**NOTHING, "collapses": 1, "safety_resets": int(reaction == "reset")}
    assert any(not torch.equal(start[key], before[key]) for key in start)
    if reaction == "reset":
        assert_same_state(start, snapshot(method.model))
        for _, x in target_batches(32 * 8, 8):
            assert torch.equal(method(x), method.predict(x)), "it rests"
        assert_same_state(start, snapshot(method.model))
        method(x)
        assert any(not torch.equal(start[key], value) for key, value in snapshot(method.model).items())
    assert_resets(method, start)


def test_a_collapse_over_all_classes_is_found_and_answered_by_default(caplog):
    method, few = build("cattan", many_classes(), lr=0.1, lambda_cb=10.0), Collapse()
    start = snapshot(method.model)
    with caplog.at_level(logging.WARNING, "tta_cattan"):
        for _, x in target_batches(64 * 32, 32):
            predicted = method(x).argmax(1)
            assert not few.add(predicted), "its predictions are spread over the classes"
            if method.safety.collapses:
                break
    assert few.classes > 4 and counts(method) == {**NOTHING, "collapses": 1, "safety_resets": 1}
    assert "the method starts anew and rests" in caplog.text
    method.aligned.clear()
    assert_same_state(start, snapshot(method.model))


def test_what_the_fresh_model_is_sure_of_weighs_more():
    fresh = torch.tensor([[4.0, 0, 0], [0, 4.0, 0], [0, 0, 0.1], [0, 0, 0.1]])
    top = fresh.softmax(1).sort(1).values
    sure, unsure = (top[row, 2] - top[row, 1] for row in (0, 2))
    adapted = torch.eye(3)[[0, 1, 0, 0]]  # the unsure ones change
    assert overturned(adapted, fresh) == pytest.approx(float(2 * unsure - 0.25 * (2 * sure + 2 * unsure)))
    assert overturned(torch.eye(3)[[1, 0, 2, 2]], fresh) > 1 > 0 > overturned(adapted, fresh)
    assert overturned(fresh.roll(1, 1), fresh, 1.0) == pytest.approx(0), "all of them overturned"
    assert overturned(torch.zeros(2, 1), torch.ones(2, 1)) == 0, "one class"


def test_batches_are_compared_seldom_until_something_is_suspected():
    safety, sure = Safety(on_collapse="report"), 9 * torch.eye(4)
    other = sure.roll(1, 1)
    assert [step for step in range(1, 40) if safety.compares()] == [16, 32]
    assert not safety.compare(other, sure) and safety.compares() and safety.compares()
    again = unpack(pack(safety))
    assert [(one.compare(other, sure), one.collapses) for one in (safety, again) for _ in range(3)] == [
        (False, 0), (False, 1), (False, 1),
    ] * 2  # fmt: skip
    assert not any(safety.compares() for _ in range(15)), "it is known"
    for _ in range(13):
        safety.compare(sure, sure)
    assert safety.collapses == 1
    for _ in range(3):
        safety.compare(other, sure)
    assert safety.collapses == 2, "it was over"


def test_rests_grow_with_the_resets_and_a_batch_again_is_one():
    safety, lengths = Safety(), []
    for _ in range(3):
        safety.rest()
        lengths.append(0)
        assert safety.rests(new_batch=False), "further updates on the batch of the alarm"
        while safety.rests(new_batch=True):
            assert safety.rests(new_batch=False)
            lengths[-1] += 1
    assert lengths == [32, 64, 128] and safety.resets == 3


@pytest.mark.parametrize("reaction", ["report", "reset"])
def test_a_divergence_is_found_and_answered_by_the_key(reaction, caplog):
    # Gradient descent on ||W_t Phi - W_s||^2 diverges beyond a rate of 1.
    method = build("cattan", optimizer=partial(torch.optim.SGD, lr=1.05), on_divergence=reaction)
    start = snapshot(method.model)
    with caplog.at_level(logging.WARNING, "tta_cattan"):
        for _, x in target_batches(3200, 8):
            method(x)
            if method.safety.divergences:
                break
    found = counts(method)
    assert (found["divergences"], found["safety_resets"]) == (1, int(reaction == "reset"))
    assert "adaptation diverges: a loss of " in caplog.text
    if reaction == "reset":
        assert_same_state(start, snapshot(method.model))
    assert_resets(method, start)


def test_a_model_that_gives_no_finite_update_any_more_has_diverged():
    method = build("tent", on_divergence="reset")
    start, batches = snapshot(method.model), target_batches(80, 8)
    with torch.no_grad():
        method.model.norm1.weight.fill_(float("inf"))  # as from a damaged state that was loaded
    for _, x in batches[:4]:
        method(x)
    assert counts(method) == {**NOTHING, "skipped_steps": 4}
    method(batches[4][1])
    assert counts(method) == {"skipped_steps": 5, "collapses": 0, "divergences": 1, "safety_resets": 1}
    assert_same_state(start, snapshot(method.model))


def test_starting_again_keeps_what_the_whole_target_set_has_taught():
    batches = target_batches()
    cattan, shot = build("cattan"), build("shot")
    for method in (cattan, shot):
        run(method, "offline", batches)
        method.reset(keep_known=True)
    fresh = build("cattan")
    fresh.reset()
    fresh.prepare(batches)
    # The features of prepare were those of the source model, so that the start is the same.
    assert_same_state(snapshot(fresh.model), snapshot(cattan.model))
    assert len(shot.target.known) == 40
    cattan.reset()
    cattan.reset(keep_known=True)
    assert not cattan.aligned.enabled, "reset forgets it"


def test_the_loss_may_rise_a_little_or_once():
    safety = Safety()
    assert not any(safety.watch(0.2 + 0.01 * step, 4) for step in range(200))
    assert not safety.watch(1e6, 4)
    assert not safety.watch(2.0, 4)
    assert [safety.watch(1e6, 4) for _ in range(6)] == [False] * 4 + [True, False]
    assert safety.divergences == 1


def test_effective_classes_are_the_exponential_of_the_entropy():
    predicted = [0, 0, 0, 2, 2, 3]
    expected = math.exp(-sum(predicted.count(c) / 6 * math.log(predicted.count(c) / 6) for c in (0, 2, 3)))
    assert effective_classes(torch.tensor(predicted)) == pytest.approx(expected)


def test_a_stream_of_one_class_from_the_start_is_no_collapse():
    safety, predicted = Safety(), torch.zeros(1, dtype=torch.long)
    for _ in range(100):
        safety.watch_classes(predicted)
    assert safety.collapses == 0


def test_a_collapse_counts_once_until_it_is_over():
    safety, mixed, single = Safety(), torch.arange(64) % 4, torch.zeros(64, dtype=torch.long)
    for predicted in (mixed, single, single, single, mixed, mixed, single, single):
        safety.watch_classes(predicted)
    assert safety.collapses == 2


@pytest.mark.parametrize(
    ("before", "after", "frozen", "expected"),
    [
        (8, 2, None, True),
        (8, 6, None, False),
        (8, 4, None, False),
        (8, 4, (8, 8), True),
        (8, 2, (8, 2), False),  # the frozen network predicts few classes too: the data has changed
        (8, 2, (8, 8), True),
        (8, 2, (2, 2), True),  # it always did
    ],
)
def test_a_collapse_is_a_fall_that_the_frozen_network_does_not_share(before, after, frozen, expected):
    watch, places = Collapse(), torch.arange(240)
    for step, classes in enumerate([before] * 3 + [after] * 3):
        theirs = None if frozen is None else places % frozen[step // 3]
        found = watch.add(places % classes, theirs)
        assert not found or step > 2
    assert found is expected and watch.classes == pytest.approx(after)
    again = unpack(pack(watch))
    assert [again.add(places % n) for n in (1, 9)] == [watch.add(places % n) for n in (1, 9)]


def test_a_spoilt_stream_does_not_flood_the_log(caplog):
    safety = Safety()
    with caplog.at_level(logging.WARNING, "tta_cattan"):
        for _ in range(100):
            safety.skip("loss", torch.tensor([float("nan")]))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 7 and lines[-1] == "the batch is not finite: this update was skipped (64 so far)"


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ([torch.ones(3), torch.zeros(2, 2)], True),
        ([torch.ones(3), torch.tensor([float("nan")])], False),
        ([torch.tensor([float("inf"), -float("inf")])], False),
        ([torch.tensor([1e20])], False),
        ([torch.full((10,), 6e4, dtype=torch.float16)], True),
        ([torch.tensor(1.0, dtype=torch.float64), torch.ones(1)], True),
    ],
)
def test_in_range(tensors, expected):
    assert in_range(tensors) is expected


def test_the_keys_reach_the_method():
    cfg = load_cfg(None, ["MODEL.ADAPTATION", "tent", "SAFETY.ON_COLLAPSE", "report"])
    safety = setup_model(torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)), cfg).safety
    assert (safety.on_collapse, safety.on_divergence) == ("report", "reset")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_collapse": "rest"}, "on_collapse = 'rest': must be one of 'report', 'reset'. Did you mean 'reset'?"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(UserError) as error:
        build("tent", **options)
    assert words in str(error.value)
