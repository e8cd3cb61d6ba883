"""What a gate does at any threshold, against applying it to the samples themselves."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from sklearn.metrics import roc_auc_score

from tta_cattan.bench.protocols.recovery import PREDICTORS, AgreementCounts
from tta_cattan.util.errors import UserError

K, N = 4, 300


@pytest.fixture(scope="module")
def samples():
    generator = torch.Generator().manual_seed(3)
    qbar = torch.randint(0, K + 1, (N,), generator=generator) / K
    is_source = torch.rand(N, generator=generator) < 0.4
    rates = dict(zip(PREDICTORS, (0.6, 0.7, 0.9), strict=True))
    correct = {name: torch.rand(N, generator=generator) < rate for name, rate in rates.items()}
    return qbar, is_source, correct


@pytest.fixture(scope="module")
def counts(samples):
    qbar, is_source, correct = samples
    return AgreementCounts.of(qbar, K, is_source, correct)


@pytest.mark.parametrize("fallback", ["bypass", "source"])
@pytest.mark.parametrize("tau", [0.0, 0.1, 0.25, 0.3, 0.75, 1.0])
def test_a_gate_is_what_it_does_to_each_sample(samples, counts, tau, fallback):
    qbar, is_source, correct = samples
    gated = counts.gate(tau, fallback)
    flagged = qbar < tau
    after = torch.where(flagged, correct[fallback], correct["adapted"]).double()
    assert gated.source_before == pytest.approx(correct["adapted"][is_source].double().mean().item())
    assert gated.target_before == pytest.approx(correct["adapted"][~is_source].double().mean().item())
    assert gated.source_after == pytest.approx(after[is_source].mean().item())
    assert gated.target_after == pytest.approx(after[~is_source].mean().item())
    assert gated.detection == pytest.approx(flagged[is_source].double().mean().item())
    assert gated.false_alarms == pytest.approx(flagged[~is_source].double().mean().item())


def test_the_thresholds_are_all_that_differ(counts):
    taus = counts.thresholds()
    assert taus == [0, 0.25, 0.5, 0.75, 1] and counts.k == K
    rates = [counts.gate(tau, "source").detection for tau in taus]
    assert rates[0] == 0 and rates == sorted(set(rates))
    for low, high in pairwise(taus):
        assert counts.gate((low + high) / 2, "source").detection == counts.gate(high, "source").detection


def test_auroc_is_scikit_learns(samples, counts):
    qbar, is_source, _ = samples
    assert counts.auroc() == pytest.approx(roc_auc_score(is_source.numpy(), -qbar.numpy()))


def test_counts_survive_a_results_file(counts):
    assert AgreementCounts(json.loads(json.dumps(counts.counts))) == counts


def test_a_mix_of_one_domain_is_refused():
    right = {name: torch.ones(4, dtype=torch.bool) for name in PREDICTORS}
    with pytest.raises(UserError, match="mix has no target sample"):
        AgreementCounts.of(torch.ones(4), 3, torch.ones(4, dtype=torch.bool), right)
