"""One pass over a stream: what the method sees, what is measured, and that an interruption changes nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from small_networks import METHODS, N_CLASSES, build, images, many_classes, network
from torch.utils.data import Dataset, TensorDataset

from tta_cattan.bench import Domain
from tta_cattan.bench.data.datasets import labels_of
from tta_cattan.bench.data.domain_stream import DomainStream
from tta_cattan.bench.data.stream import Stream
from tta_cattan.bench.data.stream_plan import StreamSetting, plan_stream, sequence_of
from tta_cattan.bench.protocols import accuracy_without_updates, run_stream
from tta_cattan.bench.protocols import stream as stream_module
from tta_cattan.bench.protocols.stream import StreamEvaluation, window_counts
from tta_cattan.bench.run.cell import relative_cost
from tta_cattan.monitor import Monitor

CPU = torch.device("cpu")
DOMAINS = [Domain(name, 5) for name in ("fog", "snow", "zoom")]
SIZES = dict(zip(DOMAINS, (21, 30, 9), strict=True))


def open_domain(domain):
    n, place = SIZES[domain], DOMAINS.index(domain)
    return TensorDataset((1 + 0.4 * place) * images(n, place), torch.arange(n) % N_CLASSES)


class Listed(Dataset):
    """A data set that gives one sample at a time, as image files do."""

    def __init__(self, data):
        self.data, self.labels = data, data.tensors[1].tolist()

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


def stream(batch_size=8, seed=0, opener=open_domain, **setting):
    setting = StreamSetting(**setting)
    visits = sequence_of(DOMAINS, setting)
    labels = {domain: np.asarray(labels_of(open_domain(domain))) for domain in DOMAINS}
    return DomainStream(plan_stream(visits, labels, setting, seed), opener, batch_size, CPU)


SETTINGS = [
    {"order": "continual"},
    {"order": "mixed_domains", "correlated": True, "delta": 0.3},
    {"order": "smooth"},
    {"order": "recurring", "rounds": 2, "imbalance": 3.0},
]


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s["order"])
@pytest.mark.parametrize("files", [False, True])
def test_the_batches_are_the_planned_samples(setting, batch_size, files):
    opener = (lambda domain: Listed(open_domain(domain))) if files else open_domain
    found = stream(batch_size, opener=opener, **setting)
    data = {domain: open_domain(domain).tensors for domain in DOMAINS}
    start, resets = 0, []
    visit = found.plan.visit
    for number, (reset, batch) in enumerate(found.batches()):
        if reset:
            resets.append(number)
        assert 1 <= len(batch.inputs) <= batch_size
        for x, y, index in zip(batch.inputs, batch.labels, batch.indices, strict=True):
            inputs, labels = data[found.plan.visits[visit[start]]]
            assert torch.equal(x, inputs[index]) and y == labels[index]
            start += 1
    assert start == len(found.plan) and resets == [0]
    whole = [batch.inputs for _, batch in found.batches()]
    for done in range(len(whole) + 1):
        rest = [batch.inputs for _, batch in found.batches(done)]
        assert len(rest) == len(whole) - done and all(map(torch.equal, rest, whole[done:]))


def test_few_domains_are_open_at_once():
    opened = []
    found = stream(opener=lambda domain: opened.append(domain) or open_domain(domain), order="recurring", rounds=2)
    assert opened == [], "nothing is read before it is needed"
    list(found.batches())
    assert opened == DOMAINS * 2


def test_a_batch_never_spans_two_visits_and_resets_are_where_the_setting_says():
    found = stream(8, order="reset_each_shift", correlated=True)
    sizes = [(reset, len(batch.inputs)) for reset, batch in found.batches()]
    assert sizes == [
        (True, 8), (False, 8), (False, 5),
        (True, 8), (False, 8), (False, 8), (False, 6),
        (True, 8), (False, 1),
    ]  # fmt: skip
    method = build("tent")
    alone = []
    for segment, domain in zip(found.plan.segments, DOMAINS, strict=True):
        method.reset()
        inputs, _ = open_domain(domain).tensors
        alone += [method(inputs[part]).argmax(1) for part in torch.from_numpy(segment.index).split(8)]
    assert torch.equal(run_stream(build("tent"), found).prediction, torch.cat(alone))


def test_continual_is_a_plain_loop_without_reset():
    found, method = stream(order="continual"), build("cattan")
    method.reset()
    reference = torch.cat([method(batch.inputs).argmax(1) for _, batch in found.batches()])
    assert torch.equal(run_stream(build("cattan"), found).prediction, reference)


def test_batches_in_between_are_only_predicted():
    found, method = stream(order="continual"), build("tent")
    method.reset()
    reference = [
        (method(batch.inputs) if number % 3 == 0 else method.predict(batch.inputs)).argmax(1)
        for number, (_, batch) in enumerate(found.batches())
    ]
    assert torch.equal(run_stream(build("tent"), found, adapt_every=3).prediction, torch.cat(reference))


def test_an_update_costs_several_predictions_and_measuring_it_changes_nothing():
    x, net = images(8, 0), network()
    for name, cost in (("source", {1}), ("norm", {1}), ("tent", {2, 3})):
        method, before = build(name), torch.get_rng_state()
        state = method.predict(x)
        assert relative_cost(method, net, x) in cost
        assert torch.equal(method.predict(x), state) and torch.equal(torch.get_rng_state(), before)


def test_the_measures_against_a_literal_reference(monkeypatch):
    monkeypatch.setattr(stream_module, "WINDOW", 10)
    monkeypatch.setattr(window_counts, "__defaults__", (10,))
    found = stream(order="smooth")
    evaluation = run_stream(build("tent"), found)
    right, visit = evaluation.correct.tolist(), found.plan.visit.tolist()
    metrics, facts = evaluation.metrics(), evaluation.facts()
    assert metrics["accuracy"] == pytest.approx(sum(right) / 60) and metrics["n"] == 60
    windows = [sum(right[start : start + 10]) for start in range(0, 60, 10)]
    assert facts["windows"] == {"size": 10, "correct": windows} and metrics["worst_window"] == min(windows) / 10
    assert facts["visits"] == [
        {"domain": f"{d.name}5", "n": SIZES[d], "correct": sum(r for r, v in zip(right, visit, strict=True) if v == k)}
        for k, d in enumerate(DOMAINS)
    ]
    assert facts["bands"] == [list(band) for band in found.plan.bands] and facts["collapsed_at"] == []
    columns = evaluation.predictions()
    assert columns["visit"].tolist() == visit
    assert columns["index"].tolist() == np.concatenate([s.index for s in found.plan.segments]).tolist()


def test_a_short_last_window_is_not_the_worst():
    evaluation = StreamEvaluation(stream().plan)
    right = torch.tensor([True] * 250 + [False] * 3)
    evaluation.add(torch.arange(253), torch.stack([right, ~right], 1).float(), torch.zeros(253, dtype=torch.long))
    assert evaluation.metrics()["worst_window"] == 1.0
    assert window_counts(right) == ([250, 0], [250, 3])


def test_a_collapse_is_dated():
    method = build("tent", many_classes(), lr=5.0)
    evaluation = run_stream(method, stream(order="recurring", rounds=6))
    assert method.safety.collapses == len(evaluation.collapses) > 0
    assert evaluation.collapses == sorted(evaluation.collapses) and evaluation.facts()["collapsed_at"][0] >= 16 * 8


def test_clean_accuracy_updates_nothing():
    method, data = build("cattan"), open_domain(DOMAINS[0])
    run_stream(method, stream())
    before = method.predict(data.tensors[0])
    found = accuracy_without_updates(method, Stream(data, 21, None, CPU))
    assert found == (before.argmax(1) == data.tensors[1]).double().mean().item()
    assert torch.equal(method.predict(data.tensors[0]), before)


class StoppedError(Exception):
    """What a test raises in the middle of a stream."""


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_stream_is_the_undisturbed_one_bit_for_bit(name, tmp_path, monkeypatch):
    monkeypatch.setattr(stream_module, "_SAVE_EVERY", 16)
    rng = random.Random(name)
    for number, setting in enumerate([*SETTINGS, {"order": "reset_each_shift", "correlated": True}]):
        batch_size = (1, 3, 8)[number % 3]
        options = {"on_collapse": "reset"}
        torch.manual_seed(0)
        whole = run_stream(build(name, **options), stream(batch_size, **setting))
        drawn = torch.rand(1)
        path = tmp_path / f"{number}.pt"
        torch.manual_seed(0)
        for _ in range(5):
            left = rng.randrange(1, 60 // batch_size)

            def tick():
                nonlocal left
                left -= 1
                if left == 0:
                    raise StoppedError

            try:
                method = build(name, **options)
                found = run_stream(method, stream(batch_size, **setting), path, tick)
                break
            except StoppedError:
                torch.manual_seed(99)  # another process has another state
        else:
            method = build(name, **options)
            torch.manual_seed(0)  # as a cell does, where there is no checkpoint yet
            found = run_stream(method, stream(batch_size, **setting), path)
        for one, other in zip(whole.parts(), found.parts(), strict=True):
            assert torch.equal(one, other)
        assert whole.metrics() == found.metrics() and whole.facts() == found.facts()
        assert all(map(np.array_equal, whole.predictions().values(), found.predictions().values()))
        if path.is_file():
            assert torch.equal(torch.rand(1), drawn), "the generator is where it was"


def test_a_monitor_looks_on_and_resumes_too(tmp_path, monkeypatch):
    monkeypatch.setattr(stream_module, "_SAVE_EVERY", 16)
    monkeypatch.setattr(stream_module, "WINDOW", 16)
    x = images(120, 5)

    def watched(on_batch=lambda: None, path=None):
        torch.manual_seed(0)
        clean = [(x, torch.arange(120) % N_CLASSES)]
        monitor = Monitor.fit(build("tent"), clean, d=4, window=16)
        return run_stream(build("tent"), stream(order="continual"), path, on_batch, monitor=monitor)

    whole = watched()
    facts = whole.facts()
    seen = [reading[0] for reading in facts["monitor"]["readings"]]
    assert seen == [16, 37, 51], "the first batch that completes each window of 16"
    assert all(low <= value <= high for _, value, low, high, _ in facts["monitor"]["readings"])
    assert torch.equal(whole.correct, run_stream(build("tent"), stream(order="continual")).correct)

    ticks = iter(range(100))

    def tick():
        if next(ticks) == 4:
            raise StoppedError

    with pytest.raises(StoppedError):
        watched(tick, tmp_path / "c.pt")
    assert watched(path=tmp_path / "c.pt").facts() == facts


def test_a_damaged_checkpoint_starts_again(tmp_path, caplog):
    path = tmp_path / "c.pt"
    whole = run_stream(build("tent"), stream())
    for content in (b"", b"no checkpoint", b"PK\x03\x04"):
        path.write_bytes(content)
        assert torch.equal(run_stream(build("tent"), stream(), path).prediction, whole.prediction)
        assert "its work starts again" in caplog.text
        caplog.clear()
