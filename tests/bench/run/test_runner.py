"""The runner: a cell depends on its config, its seed and the setting, and on nothing that ran before."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from digits_runs import overrides, run_folder

from tta_cattan.bench.data import BENCHMARK_REGISTRY
from tta_cattan.bench.results.store import Cell, ResultsStore
from tta_cattan.bench.run import cell as cell_module
from tta_cattan.bench.run import runner
from tta_cattan.bench.run.cell import COST_METRICS
from tta_cattan.bench.run.dry_run import dry_run
from tta_cattan.bench.run.plan import Job, Row, plan_rows
from tta_cattan.bench.run.setting import Setting, check_rows, prepare_settings
from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_tensors

METHODS = ["source", "norm", "tent", "tent_plus", "shot", "ip", "cattan"]


def rows(*methods: str, save=None, **changes: object) -> list[Row]:
    return plan_rows("cfgs/digits_c/cattan.yaml", overrides(save, **changes), methods or METHODS)


@pytest.fixture(scope="module")
def settings() -> dict[str, Setting]:
    chosen = rows()
    return dict(zip(METHODS, prepare_settings(chosen, check_rows(chosen)), strict=True))


def metrics(row: Row, cell: Cell, settings: dict[str, Setting]) -> dict[str, float]:
    record = cell_module.run_cell(Job(row.cfg, cell, "f"), settings[row.method])
    return {name: value for name, value in record.metrics.items() if name not in COST_METRICS}


@pytest.mark.parametrize("protocol", ["offline", "online"])
def test_a_cell_does_not_depend_on_what_ran_before(settings, protocol):
    before = sha256_tensors(settings["tent"].loaded.model.state_dict())
    found = {}
    for round_ in (METHODS, METHODS[::-1]):
        for method in round_:
            (row,) = rows(method, **{"TEST.PROTOCOL": protocol, "TEST.BATCH_SIZE": 16, "CATTAN.D": 8})
            torch.rand(len(method))  # as if something else had drawn in between
            got = metrics(row, Cell(method, "contrast", 5, 3), settings)
            assert found.setdefault(method, got) == got and got["n"] == 64, method
    assert sha256_tensors(settings["tent"].loaded.model.state_dict()) == before, "no method touches the source model"
    assert len({tuple(value.values()) for value in found.values()}) > 3


def test_seed_and_order_decide_the_stream(settings, monkeypatch):
    streams = []
    real = cell_module.Stream
    monkeypatch.setattr(cell_module, "Stream", lambda *args: streams.append(args) or real(*args))
    for order, seed in (("seeded", 4), ("file", 4)):
        (row,) = rows("source", **{"TEST.ORDER": order, "TEST.NUM_WORKERS": 1})
        metrics(row, Cell("source", "contrast", 5, seed), settings)
    assert [args[1:3] for args in streams] == [(64, 4), (64, None)] and streams[0][4] == 1


def test_the_fingerprint_holds_all_of_the_subspace(settings):
    (row,) = rows("cattan")
    subspace = settings["cattan"].subspace
    stamps = set()
    for other in (
        subspace,
        replace(subspace, mean=subspace.mean + 1),
        subspace.without_mean(),
        replace(subspace, eigenvalues=subspace.eigenvalues * 2),
        replace(subspace, basis=-subspace.basis),
        None,
    ):
        stamps.add(replace(settings["cattan"], subspace=other).fingerprint(row.cfg))
    assert len(stamps) == 6
    assert settings["tent"].subspace is None, "TENT has no part in it"
    assert len({id(setting.loaded.model) for setting in settings.values()}) == 1


def test_methods_that_need_images_are_refused_on_features(monkeypatch):
    benchmark = BENCHMARK_REGISTRY.get("digits_c")
    monkeypatch.setattr(benchmark, "images", False)
    assert ADAPTATION_REGISTRY.get("ip").needs_images
    with pytest.raises(UserError, match="'ip' needs images, and digits_c has none"):
        check_rows(rows("tent", "ip"))
    check_rows(rows("tent", "cattan"))


def test_a_folder_that_another_run_holds_is_refused(tmp_path, settings):
    chosen = rows("source", save=tmp_path)
    folder = runner.run_folder(chosen, settings)
    folder.mkdir(parents=True)
    with ResultsStore(folder).lock(), pytest.raises(UserError):
        runner.run(chosen)
    assert ResultsStore(folder).records() == []
    outcome = runner.run(chosen)
    assert outcome.folders == [folder] == [run_folder(tmp_path)] and outcome.summary.complete


def test_a_dry_run_needs_source_data_or_a_subspace(monkeypatch, tmp_path):
    monkeypatch.setattr(BENCHMARK_REGISTRY.get("digits_c"), "has_source", lambda _: False)
    chosen = rows("cattan", CKPT_DIR=tmp_path)
    with pytest.raises(UserError, match="fit-source"):
        dry_run(chosen)
    dry_run(rows("cattan", CKPT_DIR=tmp_path, **{"CATTAN.SOURCE_BASIS": "classifier"}))
    dry_run(rows("tent", CKPT_DIR=tmp_path))


def test_a_sweep_of_many_keys_has_a_folder_name_that_a_file_system_takes(tmp_path, settings):
    def folder(keys):
        changes = tuple((key, 1) for key in keys)
        row = replace(rows("source", save=tmp_path)[0], changes=changes)
        return runner.run_folder([row], {row.label: next(iter(settings.values()))}).name

    few, many = folder(["A.KEY", "B.KEY"]), folder([f"NODE.KEY_{i}" for i in range(40)])
    assert few.endswith("-by-A.KEY-B.KEY")
    assert "-by-40-keys-" in many and len(many) < 255
    assert many != folder([f"NODE.OTHER_{i}" for i in range(40)])
