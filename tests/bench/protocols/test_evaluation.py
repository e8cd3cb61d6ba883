"""What is kept of predictions, against the logits that they came from."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.metrics import log_loss
from small_networks import N_CLASSES, build, images
from torch.utils.data import TensorDataset

from tta_cattan.bench.data.stream import Stream
from tta_cattan.bench.protocols import Evaluation, run_offline, run_online
from tta_cattan.metrics import ReliabilityBins


def stream(n=45, batch_size=8):
    return Stream(TensorDataset(images(n, 7), torch.arange(n) % N_CLASSES), batch_size, 0, torch.device("cpu"))


@pytest.fixture
def filled():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(100, 4, generator=generator), torch.randint(0, 4, (100,), generator=generator)
    evaluation, order = Evaluation(online=True), torch.randperm(100, generator=generator)
    for places in order.split(16):
        evaluation.add(places, logits[places], labels[places])
    return evaluation, logits, labels, order


def test_metrics_are_those_of_all_logits(filled):
    evaluation, logits, labels, _ = filled
    p = softmax(logits.double().numpy(), axis=1)
    metrics = evaluation.metrics()
    assert metrics["nll"] == pytest.approx(log_loss(labels.numpy(), p, labels=range(4)))
    assert metrics["brier"] == pytest.approx(np.square(p - np.eye(4)[labels.numpy()]).sum(1).mean())
    assert metrics["accuracy"] == pytest.approx((p.argmax(1) == labels.numpy()).mean())
    assert metrics["n"] == 100


def test_facts_survive_json_and_agree_with_the_metrics(filled):
    evaluation, logits, labels, order = filled
    facts = json.loads(json.dumps(evaluation.facts()))
    bins = ReliabilityBins(**{name: tuple(values) for name, values in facts["reliability"].items()})
    assert bins.calibration_error == pytest.approx(evaluation.metrics()["ece"]) and sum(bins.count) == 100
    right = (logits.argmax(1) == labels)[order]
    seen = facts["stream"]["seen"]
    assert seen[-1] == 100 and len(seen) == 40
    assert facts["stream"]["correct"] == [int(right[:n].sum()) for n in seen]


def test_predictions_are_in_the_order_of_the_data_set(filled):
    evaluation, logits, labels, _ = filled
    columns = evaluation.predictions()
    assert columns["index"].tolist() == list(range(100))
    assert columns["prediction"].tolist() == logits.argmax(1).tolist()
    assert columns["label"].tolist() == labels.tolist()
    np.testing.assert_allclose(columns["confidence"], softmax(logits.numpy(), axis=1).max(1), rtol=1e-6)
    assert sum(column.nbytes for column in columns.values()) == 100 * (4 + 2 + 4 + 2)


def test_many_classes_need_wider_numbers():
    evaluation = Evaluation()
    logits = torch.zeros(1, 40_000)
    logits[0, 39_999] = 9
    evaluation.add(torch.tensor([0]), logits, torch.tensor([3]))
    assert evaluation.predictions()["prediction"].tolist() == [39_999]


def test_lost_predictions_are_the_uniform_ones():
    evaluation = Evaluation()
    evaluation.add(
        torch.arange(2), torch.tensor([[float("nan"), 1.0], [float("inf"), float("inf")]]), torch.ones(2).long()
    )
    metrics = evaluation.metrics()
    assert metrics["nll"] == pytest.approx(np.log(2)) and metrics["brier"] == pytest.approx(0.5)
    assert metrics["accuracy"] == 0 and evaluation.prediction.tolist() == [-1, -1]
    assert evaluation.facts()["lost"] == 2


def test_offline_counts_the_predictions_made_while_adapting():
    data, method, twin = stream(), build("tent"), build("tent")
    evaluation = run_offline(method, data, epochs=3)
    expected = []
    for epoch in (1, 2, 3):
        logits = [(twin(batch.inputs), batch.labels) for batch in data.reordered(epoch)]
        expected.append(sum(int((found.argmax(1) == labels).sum()) for found, labels in logits) / 45)
    assert evaluation.epochs == expected and len(set(expected)) > 1
    assert "stream" not in evaluation.facts()


def test_nothing_is_counted_where_nothing_adapts():
    assert run_offline(build("norm"), stream(), epochs=3).facts()["epochs"] == []


def test_online_follows_the_stream():
    evaluation = run_online(build("tent"), stream())
    facts = evaluation.facts()
    assert "epochs" not in facts and facts["stream"]["seen"][-1] == 45
    assert facts["stream"]["correct"][-1] / 45 == pytest.approx(evaluation.metrics()["accuracy"])
