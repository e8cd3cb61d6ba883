"""Folders of results are read whole, with gaps, and never beyond themselves."""

from __future__ import annotations

import json

import numpy as np
import pytest
from runs_by_hand import HOSTILE, write_bare_run, write_run

from tta_cattan import UserError
from tta_cattan.bench import Domain
from tta_cattan.bench.report.comparison import group_runs
from tta_cattan.bench.report.reading import find_runs

RIGHT = np.array([True, False, True, True])
ABOUT = {"dataset": {"name": "d", "data_dir": "here"}, "model_sha256": "m", "extra": {"protocol": "online"}}


def test_a_real_run(run):
    (found,) = find_runs([run])
    assert [variant.method for variant in found.variants] == ["source", "norm", "tent", "cattan"]
    cattan = found.variants[-1]
    assert cattan.config["MODEL.ADAPTATION"] == "cattan" and cattan.config["TEST.EPOCHS"] == 2
    squares = {(Domain(name, 5), seed) for name in ("gaussian_noise", "contrast") for seed in (0, 1)}
    assert cattan.predictions.keys() == squares
    assert found.fact("extra", "protocol") == "offline" and found.fact("extra", "no", "such") is None
    assert [one.folder for one in find_runs([run.parent, run])] == [run], "a folder of runs; the same one once"


@pytest.mark.parametrize(("make", "message"), [
    (lambda path: path / "none", "is not a folder"),
    (lambda path: path, "holds no results.jsonl"),
])  # fmt: skip
def test_what_is_not_a_run_is_refused(tmp_path, make, message):
    with pytest.raises(UserError, match=message):
        find_runs([make(tmp_path)])


def test_a_run_without_a_finished_cell_is_refused(tmp_path):
    (tmp_path / "results.jsonl").write_text("")
    with pytest.raises(UserError, match="nothing to report"):
        find_runs([tmp_path])


def test_of_two_configurations_the_runs_own_counts_or_else_the_last(tmp_path):
    for stamp in ("aaaa", "bbbb"):
        write_run(tmp_path, {("tent", "fog", 0): RIGHT}, stamp)
    (found,) = find_runs([tmp_path])
    assert [v.fingerprint for v in found.variants] == ["bbbb"] and found.left_out == ["tent (aaaa)"]
    (tmp_path / "run.json").write_text(json.dumps({"extra": {"fingerprints": {"tent": "aaaa", "ip": "cccc"}}}))
    (found,) = find_runs([tmp_path])
    assert [v.fingerprint for v in found.variants] == ["aaaa"] and found.left_out == ["tent (bbbb)"]


def squares(*domains, seeds=(0, 1)):
    return {("tent", domain, seed): RIGHT for domain in domains for seed in seeds}


@pytest.mark.parametrize("trial", [squares("fog"), squares("fog", "snow") | squares("frost", seeds=(0,))])
def test_an_aborted_trial_does_not_replace_finished_results(tmp_path, trial):
    latest = {"extra": {"fingerprints": {"tent": "bbbb"}}}
    write_run(tmp_path, squares("fog", "snow", "frost"), "aaaa")
    write_run(tmp_path, trial, "bbbb", latest)
    (found,) = find_runs([tmp_path])
    assert [v.fingerprint for v in found.variants] == ["aaaa"] and found.left_out == ["tent (bbbb, unfinished)"]
    (comparison,) = group_runs([found])
    assert comparison.summary.complete and comparison.summary.averages["TENT", "accuracy"].n_seeds == 2
    write_run(tmp_path, squares("fog", "snow", "frost"), "bbbb", latest)
    (found,) = find_runs([tmp_path])
    assert [v.fingerprint for v in found.variants] == ["bbbb"] and found.left_out == ["tent (aaaa)"], "now it is whole"


def test_seeds_that_a_config_asks_for_and_has_not_are_unfinished(tmp_path):
    write_run(tmp_path, squares("usps"), "aaaa", config="SEEDS: [0, 1]")
    write_run(tmp_path, squares("usps", seeds=(0,)), "bbbb", config="SEEDS: [0, 1]")
    assert find_runs([tmp_path])[0].left_out == ["tent (bbbb, unfinished)"]
    write_run(tmp_path, {}, "bbbb")
    (tmp_path / "config-tent-bbbb.yaml").write_text("SEEDS: [0]")
    assert find_runs([tmp_path])[0].left_out == ["tent (aaaa)"], "fewer seeds on purpose are finished"


def test_of_unfinished_configurations_the_one_with_most_cells_is_shown(tmp_path):
    write_run(tmp_path, squares("fog", "snow", seeds=(0,)), "aaaa", config="SEEDS: [0, 1]")
    write_run(tmp_path, squares("frost", seeds=(0,)), "bbbb", config="SEEDS: 7")
    (found,) = find_runs([tmp_path])
    assert found.left_out == ["tent (bbbb, unfinished)"]


def test_domains_of_files_are_one_variant_and_cells_of_replaced_files_are_left_out(tmp_path):
    write_run(tmp_path, {("tent", "fog", 0): RIGHT, ("norm", "fog", 0): ~RIGHT}, "abc-111")
    write_run(tmp_path, {("tent", "snow", 0): RIGHT}, "abc-222")
    (found,) = find_runs([tmp_path])
    assert [(v.method, v.fingerprint, len(v.predictions)) for v in found.variants] == [
        ("tent", "abc", 2),
        ("norm", "abc", 1),
    ]
    assert not found.left_out
    write_run(tmp_path, {("tent", "fog", 0): ~RIGHT}, "abc-333")
    (found,) = find_runs([tmp_path])
    (tent,) = found.variants
    assert {record.cell.domain: record.metrics["accuracy"] for record in tent.records} == {"snow": 0.75, "fog": 0.25}
    assert found.left_out == ["tent on earlier files of fog5", "norm on earlier files of fog5"]


@pytest.mark.parametrize("text", ["{", "[1]", "\x00", "[" * 100_000])
def test_a_damaged_description_is_a_gap(tmp_path, caplog, text):
    write_run(tmp_path, {("tent", "fog", 0): RIGHT})
    (tmp_path / "run.json").write_text(text)
    (found,) = find_runs([tmp_path])
    assert found.description == {} and "run.json" in caplog.text
    assert group_runs([found])[0].title == tmp_path.name


def test_no_path_is_made_of_hostile_names(tmp_path):
    (tmp_path / "config-x.yaml").write_text("SECRET: 1\n")
    folder = write_run(tmp_path / "a" / "b", {(HOSTILE, "fog", 0): RIGHT, ("../../config-x", "fog", 0): RIGHT})
    (found,) = find_runs([folder])
    assert [variant.config for variant in found.variants] == [{}, {}]
    assert len(found.variants[0].predictions) == 1


def test_yaml_is_data_only(tmp_path, caplog):
    write_run(tmp_path, {("tent", "fog", 0): RIGHT})
    (tmp_path / "config-tent-abc.yaml").write_text("A: !!python/object/apply:os.getcwd []\n")
    assert find_runs([tmp_path])[0].variants[0].config == {}
    assert "config-tent-abc.yaml" in caplog.text


def test_runs_on_the_same_data_are_compared_under_telling_names(tmp_path):
    bare = write_bare_run(tmp_path / "bare", ABOUT)
    elsewhere = {**ABOUT, "dataset": {"name": "d", "data_dir": "there"}}
    config = "OPTIM: {LR: 0.1}\nMODEL: {ARCH: r}\nSAVE_DIR: elsewhere\n"
    new = write_run(tmp_path / "new", {("tent", "fog", 0): RIGHT}, "ff", elsewhere, config=config)
    again = write_run(tmp_path / "again", {("tent", "fog", 0): RIGHT}, "ee", ABOUT)
    other = write_run(tmp_path / "other", {("tent", "fog", 0): RIGHT}, "ff", {**ABOUT, "model_sha256": "n"})
    first, second = group_runs(find_runs([bare, new, again, other]))
    assert list(first.variants) == ["TENT [OPTIM.LR=0.001]", "IP", "TENT [OPTIM.LR=0.1]", "TENT [OPTIM.LR=—]"]
    assert first.config_differences() == {"OPTIM.LR": ["0.001", "0.002", "0.1", "—"]}
    assert list(second.variants) == ["TENT"] and second.title != first.title
    assert first.summary.averages["IP", "accuracy"].mean == pytest.approx(0.6)


def test_a_sweep_keeps_its_settings_in_the_names(tmp_path):
    for folder, d in (("a", 4), ("a", 8), ("b", 8)):
        write_run(tmp_path / folder, {("cattan", "fog", 0): RIGHT}, description=ABOUT, settings=(("CATTAN.D", d),))
    (comparison,) = group_runs(find_runs([tmp_path / "a", tmp_path / "b"]))
    assert list(comparison.variants) == ["CATTAn [CATTAN.D=4]", "CATTAn [CATTAN.D=8]", "CATTAn [CATTAN.D=8] #2"]


def test_rows_and_domains_are_in_the_order_in_which_they_were_asked_for(tmp_path):
    description = {
        "extra": {"rows": ["source", "tent"]},
        "config": {"CORRUPTION": {"TYPE": ["fog", "snow"], "SEVERITY": [5]}},
    }
    right = np.array([True, False])
    finished = [("tent", "snow"), ("source", "snow"), ("mine", "fog"), ("tent", "fog"), ("source", "fog")]
    write_run(tmp_path, {(*pair, 0): right for pair in finished}, description=description)
    (run,) = find_runs([tmp_path])
    assert [variant.method for variant in run.variants] == ["source", "tent", "mine"]
    assert [record.cell.domain for record in run.variants[1].records] == ["fog", "snow"]
