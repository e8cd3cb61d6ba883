"""The runner: a cell depends on its config, its seed and the setting, and on nothing that ran before."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from digits_runs import overrides, run_folder

from tta_cattan.data import BENCHMARK_REGISTRY
from tta_cattan.errors import UserError
from tta_cattan.files import sha256_tensors
from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.runs import runner
from tta_cattan.runs.log import reset_logging
from tta_cattan.runs.plan import Job, method_configs
from tta_cattan.runs.store import Cell, ResultsStore

METHODS = ["source", "norm", "tent", "tent_plus", "shot", "ip", "cattan"]


@pytest.fixture(autouse=True)
def _clean_logger():
    yield
    reset_logging()


def configs(*methods: str, save=None, **changes: object):
    return method_configs("cfgs/digits_c/cattan.yaml", overrides(save, **changes), methods or METHODS)


@pytest.fixture(scope="module")
def setting():
    chosen = configs()
    return runner.prepare_setting(chosen, runner.check_configs(chosen))


def metrics(cfg, cell: Cell, setting) -> dict[str, float]:
    record = runner.run_cell(Job(cfg, "f"), cell, setting)
    return {name: value for name, value in record.metrics.items() if name != "seconds"}


@pytest.mark.parametrize("protocol", ["offline", "online"])
def test_a_cell_does_not_depend_on_what_ran_before(setting, protocol):
    before = sha256_tensors(setting.loaded.model.state_dict())
    found = {}
    for round_ in (METHODS, METHODS[::-1]):
        for method in round_:
            (cfg,) = configs(method, **{"TEST.PROTOCOL": protocol, "TEST.BATCH_SIZE": 16, "CATTAN.D": 8})
            torch.rand(len(method))  # as if something else had drawn in between
            got = metrics(cfg, Cell(method, "contrast", 5, 3), setting)
            assert found.setdefault(method, got) == got and got["n"] == 64, method
    assert sha256_tensors(setting.loaded.model.state_dict()) == before, "no method touches the source model"
    assert len({tuple(value.values()) for value in found.values()}) > 3


def test_seed_and_order_decide_the_stream(setting, monkeypatch):
    streams = []
    real = runner.Stream
    monkeypatch.setattr(runner, "Stream", lambda *args: streams.append(args) or real(*args))
    for order, seed in (("seeded", 4), ("file", 4)):
        (cfg,) = configs("source", **{"TEST.ORDER": order, "TEST.NUM_WORKERS": 1})
        metrics(cfg, Cell("source", "contrast", 5, seed), setting)
    assert [args[1:3] for args in streams] == [(64, 4), (64, None)] and streams[0][4] == 1


def test_the_fingerprint_holds_all_of_the_subspace(setting):
    (cfg,) = configs("cattan")
    subspace = setting.subspaces["cattan"]
    stamps = set()
    for other in (
        subspace,
        replace(subspace, mean=subspace.mean + 1),
        subspace.without_mean(),
        replace(subspace, eigenvalues=subspace.eigenvalues * 2),
        replace(subspace, basis=-subspace.basis),
        None,
    ):
        stamps.add(runner._fingerprint(cfg, replace(setting, subspaces={"cattan": other})))
    assert len(stamps) == 6
    (tent,) = configs("tent")
    alone = replace(setting, subspaces={})
    assert runner._fingerprint(tent, setting) == runner._fingerprint(tent, alone), "TENT has no part in it"


def test_methods_that_need_images_are_refused_on_features(monkeypatch):
    benchmark = BENCHMARK_REGISTRY.get("digits_c")
    monkeypatch.setattr(benchmark, "images", False)
    assert ADAPTATION_REGISTRY.get("ip").needs_images
    with pytest.raises(UserError, match="'ip' needs images, and digits_c has none"):
        runner.check_configs(configs("tent", "ip"))
    runner.check_configs(configs("tent", "cattan"))


def test_a_folder_that_another_run_holds_is_refused(tmp_path, setting):
    chosen = configs("source", save=tmp_path)
    folder = runner.run_folder(chosen[0], setting)
    folder.mkdir(parents=True)
    with ResultsStore(folder).lock(), pytest.raises(UserError):
        runner.run(chosen)
    assert ResultsStore(folder).records() == []
    summary, used = runner.run(chosen)
    assert used == folder == run_folder(tmp_path) and summary.complete


def test_a_dry_run_needs_source_data_or_a_subspace(monkeypatch, tmp_path):
    monkeypatch.setattr(BENCHMARK_REGISTRY.get("digits_c"), "source", lambda _: None)
    chosen = configs("cattan", CKPT_DIR=tmp_path)
    with pytest.raises(UserError, match="fit-source"):
        runner.run(chosen, dry_run=True)
    assert runner.run(configs("cattan", CKPT_DIR=tmp_path, **{"CATTAN.SOURCE_BASIS": "classifier"}), True) is None
    assert runner.run(configs("tent", CKPT_DIR=tmp_path), True) is None
