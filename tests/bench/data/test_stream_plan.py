"""The plan of a stream against a literal reference for each setting."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tta_cattan.bench import Domain
from tta_cattan.bench.data.stream_plan import (
    StreamSetting,
    by_class,
    long_tailed,
    passing_times,
    plan_stream,
    sequence_of,
)
from tta_cattan.config import load_cfg
from tta_cattan.config.declared import SETTINGS
from tta_cattan.util.errors import UserError

FOG, SNOW, ZOOM = Domain("fog", 5), Domain("snow", 5), Domain("zoom", 5)
LABELS = {FOG: np.arange(40) % 4, SNOW: np.arange(60) % 4, ZOOM: np.arange(20) % 4}
DOMAINS = list(LABELS)


def planned(seed=0, domains=DOMAINS, **setting):
    setting = StreamSetting(**setting)
    visits = sequence_of(domains, setting)
    return plan_stream(visits, {domain: LABELS.get(domain, LABELS[FOG]) for domain in visits}, setting, seed)


def pairs(plan):
    """Return (domain, sample) in the order of the stream."""
    return [
        (plan.visits[visit], index)
        for segment in plan.segments
        for visit, index in zip(segment.visit.tolist(), segment.index.tolist(), strict=True)
    ]


def classes(plan):
    return [int(LABELS[domain][index]) for domain, index in pairs(plan)]


def shuffled(seed, visit, n):
    return np.random.default_rng([seed, 1, visit]).permutation(np.arange(n)).tolist()


def runs(values):
    return 1 + int(np.count_nonzero(np.diff(values)))


@pytest.mark.parametrize("order", ["continual", "reset_each_shift"])
def test_one_domain_after_the_other(order):
    plan = planned(3, order=order)
    reference = [(d, i) for visit, d in enumerate(DOMAINS) for i in shuffled(3, visit, len(LABELS[d]))]
    assert pairs(plan) == reference
    assert plan.visits == tuple(DOMAINS) and plan.bands == ((0, 40), (40, 100), (100, 120)) and plan.at_once == 1
    assert [segment.reset for segment in plan.segments] == [True, *[order == "reset_each_shift"] * 2]


def test_a_reset_is_before_a_corruption_not_before_a_severity():
    domains = [Domain("fog", 5), Domain("snow", 5), Domain("fog", 3), Domain("snow", 3)]  # as a benchmark lists them
    plan = planned(domains=domains, order="reset_each_shift")
    assert [visit.label for visit in plan.visits] == ["fog5", "fog3", "snow5", "snow3"]
    assert [segment.reset for segment in plan.segments] == [True, False, True, False]


def test_gradual_goes_up_and_down():
    plan = planned(order="gradual")
    assert [(v.name, v.severity) for v in plan.visits] == [
        (name, severity) for name in ("fog", "snow", "zoom") for severity in (1, 2, 3, 4, 5, 4, 3, 2, 1)
    ]
    first, last = plan.segments[0], plan.segments[8]
    assert sorted(first.index) == sorted(last.index) and list(first.index) != list(last.index)
    several = [Domain("fog", 5), Domain("fog", 2)]
    assert sequence_of(several, StreamSetting("gradual")) == several
    for domain in (Domain("fog", 0), Domain("clipart")):
        with pytest.raises(UserError, match="severities 1 to 5"):
            sequence_of([domain], StreamSetting("gradual"))


def test_recurring_repeats_the_domains_in_new_orders():
    plan = planned(order="recurring", rounds=3)
    assert plan.visits == tuple(DOMAINS * 3) and len(plan) == 360
    assert [s.reset for s in plan.segments] == [True] + [False] * 8
    assert set(Counter(pairs(plan)).values()) == {3}
    assert plan.segments[0].index.tolist() == shuffled(0, 0, 40) != plan.segments[3].index.tolist()


def test_mixed_domains_are_shuffled_image_by_image():
    plan = planned(order="mixed_domains")
    everything = [(d, i) for visit, d in enumerate(DOMAINS) for i in shuffled(0, visit, len(LABELS[d]))]
    places = np.random.default_rng([0, 2]).permutation(120)
    assert pairs(plan) == [everything[place] for place in places]
    assert len(plan.segments) == 1 and plan.bands == () and plan.at_once == 3


def test_correlated_with_0_is_sorted():
    plan = planned(correlated=True)
    for segment, domain in zip(plan.segments, DOMAINS, strict=True):
        found = LABELS[domain][segment.index]
        assert found.tolist() == sorted(LABELS[domain]) and sorted(segment.index) == list(range(len(found)))
    assert classes(planned(order="mixed_domains", correlated=True)) == sorted(np.concatenate(list(LABELS.values())))
    first = pairs(planned(order="mixed_domains", correlated=True))[:30]
    assert len({domain for domain, _ in first}) == 3, "the domains stay mixed inside a class"


def test_dirichlet_runs_against_a_literal_reference():
    labels = np.random.default_rng(1).integers(0, 3, 50)
    rng = np.random.default_rng(7)
    chunks = [[[] for _ in range(3)] for _ in range(3)]  # stretch, class
    for label in range(3):
        mine = [place for place in range(50) if labels[place] == label]
        ends = [round(float(share) * len(mine)) for share in np.cumsum(rng.dirichlet([0.5] * 3))]
        for stretch, (start, end) in enumerate(zip([0, *ends[:2]], [*ends[:2], len(mine)], strict=True)):
            chunks[stretch][label] = mine[start:end]
    reference = [place for stretch in range(3) for label in rng.permutation(3) for place in chunks[stretch][label]]
    assert by_class(labels, 0.5, np.random.default_rng(7)).tolist() == reference
    assert sorted(reference) == list(range(50))


def test_the_concentration_decides_how_long_the_runs_are():
    labels = np.arange(2000) % 10
    found = [runs(labels[by_class(labels, delta, np.random.default_rng(0))]) for delta in (0, 1e-6, 0.1, 1, 100)]
    assert found[0] == 10 and found == sorted(found) and found[-1] <= 100


def test_smooth_passes_linearly_from_one_domain_to_the_next():
    domains = [Domain(name, 5) for name in "abc"]
    labels = {domain: np.zeros(20_000, dtype=np.int64) for domain in domains}
    plan = plan_stream(domains, labels, StreamSetting("smooth"), 0)
    (segment,) = plan.segments
    assert sorted(segment.index[segment.visit == 1]) == list(range(20_000)), "each sample once"
    # From the middle of a to that of b, which are 20,000 samples apart, the share of b goes from 0 to 1.
    shares = [(part == 1).mean() for part in np.split(segment.visit[10_000:30_000], 10)]
    assert np.allclose(shares, np.linspace(0.05, 0.95, 10), atol=0.03)
    assert set(segment.visit[:9000]) == {0} and plan.at_once == 3
    assert np.allclose(plan.bands, [(0, 20_000), (20_000, 40_000), (40_000, 60_000)], atol=400)
    times = passing_times([5, 3], np.random.default_rng(0))
    assert (np.diff(times[:5]) >= 0).all() and (np.diff(times[5:]) >= 0).all() and abs(times[5:] - 1).max() <= 1


def test_smooth_correlated_keeps_the_order_inside_each_domain():
    (segment,) = planned(order="smooth", correlated=True).segments
    for visit, domain in enumerate(DOMAINS):
        assert LABELS[domain][segment.index[segment.visit == visit]].tolist() == sorted(LABELS[domain])


def test_imbalance_thins_classes_out_geometrically_and_alike_in_all_domains():
    labels = np.repeat(np.arange(5), 200)
    kept = long_tailed(labels, 16.0, 3)
    counts = np.bincount(labels[kept])
    assert sorted(counts) == [round(200 * 16 ** (-r / 4)) for r in (4, 3, 2, 1, 0)] == [12, 25, 50, 100, 200]
    ranks = np.random.default_rng([3, 0]).permutation(5)
    assert counts.argsort().tolist() == (-ranks).argsort().tolist()
    assert (
        np.bincount(np.tile(labels, 2)[long_tailed(np.tile(labels, 2), 16.0, 3)]).argsort() == counts.argsort()
    ).all()
    assert long_tailed(labels, 1.0, 3).tolist() == list(range(1000))
    assert long_tailed(np.array([0, 1]), 1e9, 0).tolist() == [0, 1], "no class vanishes"
    rounds = planned(order="recurring", rounds=2, imbalance=4.0)
    assert sorted(rounds.segments[0].index) == sorted(rounds.segments[3].index) and len(rounds.segments[0]) < 40


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "reset_each_shift"])
def test_a_config_names_each_setting_and_the_seed_decides(name):
    cfg = load_cfg(None, ["SETTING", name, "TEST.DELTA_DIRICHLET", 0.3, "STREAM.ROUNDS", 2])
    setting = StreamSetting.of(cfg)
    assert setting.correlated == ("correlated" in name) and (setting.order in name or setting.order == "continual")
    assert (setting.delta, setting.rounds, setting.imbalance) == (0.3, 2, 1.0)
    visits = sequence_of(DOMAINS, setting)
    labels = dict.fromkeys(visits, LABELS[FOG])
    one, same, other = (pairs(plan_stream(visits, labels, setting, seed)) for seed in (5, 5, 6))
    assert one == same != other and len(one) == 40 * len(visits)
    assert set(Counter(one)) == set(Counter(other))


def test_other_spellings_are_refused():
    spelled = load_cfg(None, ["SETTING", "reset_each_shift_correlated"])
    assert StreamSetting.of(spelled) == StreamSetting("reset_each_shift", True)
    for wrong, near in (("mixed_domain", "mixed_domains"), ("gradual_corelated", "gradual_correlated")):
        with pytest.raises(UserError, match=f"Did you mean '{near}'"):
            load_cfg(None, ["SETTING", wrong])


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["SETTING", "continual", "TEST.PROTOCOL", "offline"], "set TEST.PROTOCOL online"),
        (["SETTING", "continual", "TEST.ORDER", "file"], "TEST.ORDER seeded"),
        (["STREAM.IMBALANCE", 10], "STREAM.IMBALANCE is for streams"),
        (["STREAM.WAITS", False], "STREAM.WAITS is for streams"),
    ],
)
def test_what_is_no_stream_is_refused(overrides, reason):
    with pytest.raises(UserError, match=reason):
        load_cfg(None, overrides)
