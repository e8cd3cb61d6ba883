"""The studies that ship: each loads, and what it names exists."""

from __future__ import annotations

import pytest

from tta_cattan.bench.paper.study import load_study, own_overrides, study_names
from tta_cattan.bench.results.published import published
from tta_cattan.bench.run.gather import domain_benchmark
from tta_cattan.bench.run.plan import parse_sweeps, plan_rows
from tta_cattan.config import find_config, load_cfg
from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.util.errors import UserError


@pytest.mark.parametrize("name", study_names())
def test_it_names_what_exists(name):
    study = load_study(name)
    overrides = own_overrides(study, find_config(study.cfg), True)
    cfg = load_cfg(find_config(study.cfg), overrides)
    assert all(method in ADAPTATION_REGISTRY for method in study.methods)
    rows = plan_rows(
        find_config(study.cfg), overrides, study.methods, parse_sweeps([study.sweep] if study.sweep else [])
    )
    assert len(rows) >= len(study.methods)
    assert study.kind in ("table", "sweep", "dimension", "recovery") and study.title
    assert (cfg.TEST.PROTOCOL == "recovery") == (study.kind == "recovery")
    assert bool(study.sweep) == (study.kind == "sweep")
    for table in study.published.values():
        assert published(table)
    if study.pairs:
        benchmark = domain_benchmark(cfg)
        labels = [
            benchmark.pair_label(source, target)
            for source in benchmark.sources()
            for target in benchmark.short_names
            if target != source
        ]
        for table in map(published, study.published.values()):
            assert not table.columns or labels == list(table.columns), "the pairs are the paper's columns, in its order"


def test_an_unknown_study_is_told_with_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'figure-robust'"):
        load_study("figure-robost")
