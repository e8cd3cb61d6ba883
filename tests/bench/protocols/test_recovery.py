"""The recovery protocol: what each hypothesis begins with, and the mix that they are measured on."""

from __future__ import annotations

import copy
from itertools import chain

import pytest
import torch
from small_networks import N_CLASSES, build, images, network, snapshot
from torch.utils.data import TensorDataset

from tta_cattan.bench.data.stream import Stream
from tta_cattan.bench.protocols.one_domain import adapt_offline
from tta_cattan.bench.protocols.recovery import (
    SourceRecovery,
    adapt_hypotheses,
    agreement,
    evaluate_mix,
    half_and_half,
)
from tta_cattan.methods import CATTAn, Shot, Tent
from tta_cattan.util.errors import UserError

N, CPU = 30, torch.device("cpu")
NET = network()


def dataset(n=N, shift=0.2, seed=7):
    return TensorDataset(1.3 * images(n, seed) + shift, torch.arange(n) % N_CLASSES)


def stream(n=N):
    return Stream(dataset(n), 8, 0, CPU)


@pytest.fixture
def seen(monkeypatch):
    """Write down what each method is given beforehand and in its updates."""
    log = []
    for cls in (CATTAn, Tent, Shot):

        def prepare(self, batches, real=cls.prepare):
            log.append(("prepare", sorted(torch.cat([index for index, _ in batches]).tolist())))
            real(self, batches)

        def forward(self, x, indices=None, real=cls.forward):
            log.append(("update", indices.tolist()))
            return real(self, x, indices)

        if cls is CATTAn:  # elsewhere a method of its own would say that there is something to learn
            monkeypatch.setattr(cls, "prepare", prepare)
        monkeypatch.setattr(cls, "forward", forward)
    return log


def expected_doubt(first, n=20):
    """Return the samples in which a hypothesis has the lowest confidence, one by one."""
    confidence = {}
    for batch in stream():
        for place, p in zip(batch.indices.tolist(), first.predict(batch.inputs).softmax(1), strict=True):
            confidence[place] = p.max().item()
    return sorted(sorted(confidence, key=confidence.get)[:n])


def test_cattan_refits_on_the_least_confident_and_adapts_on_all(seen):
    first, second = adapt_hypotheses(lambda: build("cattan", NET), stream(), epochs=2, k=2)
    fitted = [samples for kind, samples in seen if kind == "prepare"]
    assert fitted == [list(range(N)), expected_doubt(first)]
    updates = [samples for kind, samples in seen if kind == "update"]
    assert len(updates) == 2 * 2 * 4 and updates[:8] == updates[8:], "the same epochs over all samples"
    assert sorted(chain(*updates[:4])) == list(range(N))
    assert not torch.equal(first.aligned.target_basis, second.aligned.target_basis)


@pytest.mark.parametrize("name", ["tent", "shot"])
def test_others_begin_with_a_pass_over_the_least_confident(seen, name):
    first, second = adapt_hypotheses(lambda: build(name, NET), stream(), epochs=1, k=2)
    updates = [samples for _, samples in seen]
    assert len(updates) == 4 + 3 + 4, "20 of 30 samples are three batches"
    assert sorted(chain(*updates[4:7])) == expected_doubt(first)
    assert updates[:4] == updates[7:]
    assert not torch.equal(first.model.norm1.weight, second.model.norm1.weight)


def test_the_first_hypothesis_is_the_offline_protocol():
    (first, *_) = adapt_hypotheses(lambda: build("cattan", NET), stream(), epochs=2, k=2)
    alone = build("cattan", NET)
    adapt_offline(alone, stream(), 2)
    x = dataset().tensors[0]
    assert torch.equal(first.predict(x), alone.predict(x))


@pytest.mark.parametrize("name", ["source", "norm"])
def test_what_does_not_adapt_is_refused(name):
    with pytest.raises(UserError, match="updates no parameters here"):
        adapt_hypotheses(lambda: build(name, NET), stream())


def test_a_fraction_that_is_too_small_for_d_is_refused_before_the_first_hypothesis(seen):
    with pytest.raises(UserError, match="leaves 3 of 30 samples for the next subspace, too few for 4"):
        adapt_hypotheses(lambda: build("cattan", NET, d=4), stream(), fraction=0.1)
    assert not seen


def test_the_mix_has_as_many_of_each():
    source, target = dataset(50, 0.0, 3), dataset(20)
    mix, is_source = half_and_half(source, target, seed=4)
    assert len(mix) == 40 and is_source.sum() == 20
    for place in range(40):
        x, _ = mix[place]
        home = source if is_source[place] else target
        assert (home.tensors[0] == x).flatten(1).all(1).any()
    again, _ = half_and_half(source, target, seed=4)
    other, _ = half_and_half(source, target, seed=5)
    assert all(torch.equal(mix[i][0], again[i][0]) for i in range(40))
    assert any(not torch.equal(mix[i][0], other[i][0]) for i in range(40))


@pytest.mark.parametrize("name", ["cattan", "ip", "tent"])
def test_the_counts_are_those_of_the_gate_itself(name):
    data, is_source = half_and_half(dataset(60, 0.0, 3), dataset(), seed=1)
    mix = Stream(data, 16, 2, CPU)
    hypotheses = adapt_hypotheses(lambda: build(name, NET, lr=5e-2), stream(), epochs=2)
    counts, ungated = evaluate_mix(SourceRecovery(hypotheses, copy.deepcopy(NET)), mix, is_source)
    assert ungated.metrics()["n"] == 60
    for fallback in ("bypass", "source"):
        recovery = SourceRecovery(hypotheses, copy.deepcopy(NET), 0.75, fallback)
        right = {True: [], False: []}
        for batch in mix:
            found = recovery(batch.inputs).argmax(1) == batch.labels
            for place, ok in zip(batch.indices.tolist(), found.tolist(), strict=True):
                right[bool(is_source[place])].append(ok)
        gated = counts.gate(0.75, fallback)
        assert gated.source_after == pytest.approx(sum(right[True]) / 30)
        assert gated.target_after == pytest.approx(sum(right[False]) / 30)


def test_the_mix_is_only_predicted():
    hypotheses = adapt_hypotheses(lambda: build("cattan", NET), stream(), epochs=1, k=2)
    recovery = SourceRecovery(hypotheses, copy.deepcopy(NET))
    before = [snapshot(h) for h in hypotheses]
    data, is_source = half_and_half(dataset(30, 0.0, 3), dataset(), seed=1)
    counts, _ = evaluate_mix(recovery, Stream(data, 16, 2, CPU), is_source)
    for method, state in zip(hypotheses, before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in snapshot(method).items())
    x = torch.stack([data[i][0] for i in range(4)])
    assert (
        recovery.opinions(x)[1].tolist()
        == agreement(torch.stack([h.predict(x) for h in hypotheses]).softmax(2)).tolist()
    )
    assert sum(counts.counts["source"]["n"]) == 30
