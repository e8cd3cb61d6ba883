"""The order in which a method sees the data under the two protocols."""

from __future__ import annotations

import pytest
import torch
from small_networks import ADAPTING, METHODS, N_CLASSES, build, images, network, snapshot
from torch.utils.data import TensorDataset

from tta_cattan import UserError
from tta_cattan.bench.data.stream import Stream
from tta_cattan.bench.protocols import run_offline, run_online
from tta_cattan.methods import ADAPTATION_REGISTRY, Tent
from tta_cattan.metrics import accuracy, expected_calibration_error

N = 21
CPU = torch.device("cpu")
each_method = pytest.mark.parametrize("name", METHODS)


def stream(seed=0, batch_size=8, n=N, labels=None):
    x = 1.3 * images(n, 7) + 0.2
    labels = torch.arange(n) % N_CLASSES if labels is None else labels
    return Stream(TensorDataset(x, labels), batch_size, seed, CPU)


class Recorder(Tent):
    """TENT that writes down what is asked of it."""

    def __init__(self, *args, **options):
        self.log = []
        super().__init__(*args, **options)

    def reset(self):
        self.log.append("reset")
        super().reset()

    def prepare(self, batches):
        seen = [index for index, _ in batches]
        assert all(map(torch.equal, seen, [index for index, _ in batches])), "the batches are not re-iterable"
        self.log.append(("prepare", sorted(torch.cat(seen).tolist())))

    def start_epoch(self, batches):
        self.log.append("start_epoch")

    def forward(self, x, indices=None):
        self.log.append(("forward", None if indices is None else indices.tolist()))
        return super().forward(x, indices)

    def predict(self, x):
        self.log.append(("predict", {name: p.detach().clone() for name, p in self.model.named_parameters()}))
        return super().predict(x)


def test_offline_order():
    ticks = []
    method = Recorder(network())
    evaluation = run_offline(method, stream(), epochs=3, on_batch=lambda: ticks.append(1))
    kinds = [entry if isinstance(entry, str) else entry[0] for entry in method.log]
    assert kinds == ["reset", "prepare"] + ["start_epoch", *["forward"] * 3] * 3 + ["predict"] * 3
    assert method.log[1][1] == list(range(N))
    forwards = [entry[1] for entry in method.log if entry[0] == "forward"]
    epochs = [[place for batch in forwards[i : i + 3] for place in batch] for i in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3, "each epoch has an order of its own"
    assert sorted(evaluation.index.tolist()) == list(range(N))
    assert len(ticks) == 9 + 3, "three epochs, one evaluation"


def test_offline_evaluation_updates_nothing():
    method = Recorder(network())
    run_offline(method, stream(), epochs=2)
    states = [entry[1] for entry in method.log if entry[0] == "predict"]
    for state in states:
        assert all(torch.equal(value, states[0][name]) for name, value in state.items())
    assert not torch.equal(states[0]["norm1.weight"], network().norm1.weight)


@each_method
@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_offline_reports_the_predictions_of_the_last_epoch(name, statistics):
    method, data = build(name, statistics=statistics), stream()
    evaluation = run_offline(method, data, epochs=2)
    after = snapshot(method)
    logits = torch.cat([method.predict(batch.inputs) for batch in data])
    assert all(torch.equal(after[k], v) for k, v in snapshot(method).items())
    labels = torch.cat([batch.labels for batch in data])
    assert torch.equal(evaluation.prediction, logits.argmax(1))
    assert torch.equal(evaluation.label, labels)
    metrics = evaluation.metrics()
    assert metrics["n"] == N
    assert metrics["accuracy"] == pytest.approx(accuracy(logits, labels))
    assert metrics["ece"] == pytest.approx(expected_calibration_error(logits, labels))


def test_offline_gives_shot_the_places_of_its_samples():
    method = build("shot")
    run_offline(method, stream(), epochs=1)
    assert sorted(method.target.known) == list(range(N))
    assert method.target.sums is None, "the labels of the epoch were not used"


def test_methods_that_do_not_adapt_see_the_data_once():
    batches = []
    run_offline(build("norm"), stream(), epochs=5, on_batch=lambda: batches.append(1))
    assert len(batches) == 3


@pytest.mark.parametrize("name", ADAPTING)
def test_online_predicts_before_it_updates(name):
    method, data = build(name), stream()
    evaluation = run_online(method, data)
    twin, logits = build(name), []
    for batch in data:
        if name != "cattan":  # CATTAn's first moves the tracked subspace
            expected = twin.predict(batch.inputs)
            logits.append(twin(batch.inputs))
            torch.testing.assert_close(logits[-1], expected, rtol=0, atol=1e-6)
        else:
            logits.append(twin(batch.inputs))
    confidence, prediction = torch.cat(logits).softmax(1).max(1)
    assert torch.equal(evaluation.prediction, prediction)
    assert torch.equal(evaluation.confidence, confidence)
    assert torch.equal(evaluation.index, torch.cat([batch.indices for batch in data]))


def test_online_is_one_pass_after_a_reset():
    ticks, method = [], Recorder(network())
    run_online(method, stream(), on_batch=lambda: ticks.append(1))
    assert method.log == ["reset", *[("forward", None)] * 3]
    assert len(ticks) == 3


@each_method
@pytest.mark.parametrize("protocol", [run_offline, run_online])
def test_the_seed_decides_everything(name, protocol):
    def confidences(seed, method):
        evaluation = protocol(method, stream(seed))
        return evaluation.confidence[evaluation.index.argsort()]

    method = build(name)
    first = confidences(1, method)
    assert torch.equal(confidences(1, method), first), "a second run after a first"
    assert torch.equal(confidences(1, build(name)), first)
    if name != "source":
        assert not torch.equal(confidences(2, method), first)


@each_method
@pytest.mark.parametrize("protocol", [run_offline, run_online])
def test_a_last_batch_of_one(name, protocol):
    assert protocol(build(name), stream(n=17)).metrics()["n"] == 17


@pytest.mark.parametrize("protocol", [run_offline, run_online])
@pytest.mark.parametrize("label", [-1, N_CLASSES])
def test_labels_outside_the_head_are_refused(protocol, label):
    labels = torch.zeros(N, dtype=torch.long)
    labels[3] = label
    with pytest.raises(UserError, match=f"label {label} is outside the model's 5 outputs"):
        protocol(build("tent"), stream(labels=labels))


def test_an_empty_data_set_is_refused():
    with pytest.raises(UserError, match="the data set is empty"):
        stream(n=0)


@pytest.mark.parametrize("protocol", [run_offline, run_online])
def test_nan_is_a_wrong_prediction_and_the_metrics_stay_finite(protocol):
    data = stream(seed=None)
    data.dataset.tensors[0][0] = float("nan")
    evaluation = protocol(build("tent", statistics="source"), data)
    assert evaluation.prediction[0] == -1 and evaluation.confidence[0] == 0
    assert (evaluation.prediction[1:] >= 0).all()
    metrics = evaluation.metrics()
    assert metrics["n"] == N and 0 <= metrics["accuracy"] < 1 and 0 <= metrics["ece"] <= 1


def test_every_registered_method_runs_under_both_protocols_from_one_batch():
    for name in METHODS:
        assert ADAPTATION_REGISTRY.get(name) is type(build(name))
        for protocol in (run_offline, run_online):
            assert protocol(build(name), stream(batch_size=64)).metrics()["n"] == N
