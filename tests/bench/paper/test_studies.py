"""The studies that ship: each loads, and what it names exists."""

from __future__ import annotations

import pytest

from tta_cattan.bench.paper.study import load_study, own_overrides, read_study, study_names
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
    assert (cfg.TEST.PROTOCOL == "recovery") == (study.kind == "recovery")
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title: t\nkind: table\ncfg: c\nmethods: [tent]\nsweeps: x", "unknown key 'sweeps'. Did you mean 'sweep'?"),
        ("title: t\nkind: table\ncfg: c", "the key 'methods' is missing"),
        ("title: t\nkind: tabel\ncfg: c\nmethods: [tent]", "kind = 'tabel'"),
        ("title: t\nkind: table\ncfg: c\nmethods: [tent]\npublished: imagenet", "published = 'imagenet'"),
        ("title: t\nkind: sweep\ncfg: c\nmethods: [tent]", "do not belong together"),
        ("title: t\nkind: table\ncfg: c\nmethods: [tent]\nsweep: A=1", "do not belong together"),
    ],
)
def test_a_bad_study_is_told(tmp_path, text, said):
    file = tmp_path / "study.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        read_study(file)
    assert said in str(caught.value) and str(file) in str(caught.value)


def test_an_unknown_study_is_told_with_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'figure-robust'"):
        load_study("figure-robost")
