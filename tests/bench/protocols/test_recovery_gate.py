"""The gate: who gets which logits, in a batch of both domains."""

from __future__ import annotations

import copy

import pytest
import torch
from small_networks import build, images, network, run, snapshot, target_batches

from tta_cattan.bench.protocols.recovery import SourceRecovery, agreement
from tta_cattan.util.errors import UserError

NET = network()


def adapted(name, **options):
    """Return a method after two epochs on the target data."""
    method = build(name, NET, **options)
    run(method, "offline")
    return method


def gate(name, fallback="bypass", tau=0.75):
    """Return three hypotheses that were adapted with different learning rates, and so differ, behind a gate."""
    hypotheses = [adapted(name, lr=lr) for lr in (1e-3, 2e-2, 6e-2)]
    return SourceRecovery(hypotheses, copy.deepcopy(NET), tau, fallback)


def mixed_batch():
    return torch.cat([images(12, 21), target_batches()[0][1]])


@pytest.mark.parametrize("fallback", ["bypass", "source"])
@pytest.mark.parametrize("name", ["cattan", "ip", "tent", "shot"])
def test_each_sample_has_its_own_logits(name, fallback):
    recovery, x = gate(name, fallback), mixed_batch()
    logits = torch.stack([hypothesis.predict(x) for hypothesis in recovery.hypotheses])
    low = agreement(logits.softmax(2)) < 0.75
    assert 0 < low.sum() < len(x), "the batch has samples on both sides of the gate"
    out = recovery(x)
    assert torch.equal(out[~low], logits[0][~low])
    expected = recovery.fall_back(x, fallback)
    assert torch.equal(out[low], expected[low]) and not torch.equal(out, logits[0])
    if fallback == "source" or name in ("tent", "shot"):
        assert torch.equal(expected, NET(x)), "the untouched source model, by its own statistics"
    else:
        assert not torch.allclose(expected, NET(x))


def test_cattans_bypass_is_the_source_classifier_on_the_adapted_features():
    method, x = adapted("cattan"), mixed_batch()
    plain = copy.deepcopy(NET)
    plain.load_state_dict({k: v for k, v in method.model.state_dict().items() if k in NET.state_dict()})
    for layer in (plain.norm1, plain.norm2):  # batch statistics, as the method has them
        layer.track_running_stats = False
        layer.training = True
    features = plain.features(x)
    before = snapshot(method)
    assert torch.allclose(method.predict_bypassed(x), NET.fc(features), atol=1e-5)
    assert not torch.allclose(method.predict(x), NET.fc(features), atol=1e-3), "the alignment does something"
    assert all(torch.equal(value, before[name]) for name, value in snapshot(method).items()), "and it is still there"


def test_ips_bypass_leaves_out_the_input_transformation():
    method, x = adapted("ip"), mixed_batch()
    inner = copy.deepcopy(method)
    with torch.no_grad():  # the identity: tau = gamma = 1, beta = 0
        inner.model.transform.tau.fill_(1)
        inner.model.transform.gamma.fill_(1)
        inner.model.transform.beta.fill_(0)
    assert torch.allclose(method.predict_bypassed(x), inner.predict(x), atol=1e-5)
    assert not torch.allclose(method.predict(x), inner.predict(x), atol=1e-4)


def test_tau_at_the_ends():
    recovery, x = gate("cattan", tau=0.0), mixed_batch()
    assert torch.equal(recovery(x), recovery.hypotheses[0].predict(x)), "nothing is below 0"
    same = SourceRecovery([adapted("cattan"), adapted("cattan")], copy.deepcopy(NET), tau=1.0)
    assert torch.equal(same(x), same.hypotheses[0].predict(x)), "hypotheses that are one agree about everything"


def test_modes_stay_where_the_methods_put_them():
    recovery, x = gate("cattan", "source"), mixed_batch()
    before = recovery(x)
    recovery.train()
    assert torch.equal(recovery(x), before)


def test_bad_use_is_refused():
    with pytest.raises(UserError, match="at least 2"):
        SourceRecovery([adapted("tent")], NET)
    with pytest.raises(UserError, match="fallback = 'sourse'"):
        SourceRecovery([adapted("tent")] * 2, NET, fallback="sourse")
