"""The harness from its arguments to its files: nothing twice, nothing mixed, nothing lost."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time

import pytest
from digits_runs import compare, main_in_process, overrides, read_cells, run_folder, start

from tta_cattan.bench.results.store import ResultsStore
from tta_cattan.bench.run import cell as cell_module
from tta_cattan.cli.main import main
from tta_cattan.config import load_cfg
from tta_cattan.methods import ADAPTATION_REGISTRY

STAMP = r"\[\d\d/\d\d/\d\d \d\d:\d\d:\d\d\] \[\w+\.py: +\d+\]: "


@pytest.fixture
def computed(monkeypatch) -> list[tuple[str, str, int]]:
    """Return the list to which every cell that is really computed is added."""
    cells = []
    compute = cell_module.run_cell

    def watched(job, setting):
        cells.append((job.cell.method, job.cell.domain, job.cell.seed))
        return compute(job, setting)

    monkeypatch.setattr(cell_module, "run_cell", watched)
    return cells


def test_a_run_prints_the_table_and_leaves_all_its_files(tmp_path, capsys):
    assert main(compare(tmp_path, "source,tent,cattan", SEEDS="0,1")) == 0
    shown, folder = capsys.readouterr(), run_folder(tmp_path)
    cells = read_cells(tmp_path)
    assert len(cells) == 12 and all(cell["n"] == 64 for cell in cells.values())

    table = [line.split() for line in shown.out.splitlines()]
    assert table[0] == ["method", "gauss", "contrast", "avg", "ECE"]
    assert [row[0] for row in table[1:4]] == ["source", "tent", "cattan"]
    tent = [cells[key]["accuracy"] for key in cells if key[:2] == ("tent", "gaussian_noise")]
    assert table[2][1] == f"{100 * sum(tent) / 2:.1f}"
    assert f"results: {folder}" in shown.out

    names = {path.name for path in folder.iterdir()}
    assert names >= {"results.jsonl", "run.json", "log.txt", "summary.md", "summary.json"}
    stamps = {record.cell.method: record.fingerprint for record in ResultsStore(folder).records()}
    assert {f"config-{method}-{stamp}.yaml" for method, stamp in stamps.items()} <= names
    assert "source model: small_resnet, sha256" in (folder / "log.txt").read_text()
    again = load_cfg(folder / f"config-tent-{stamps['tent']}.yaml")
    assert (again.MODEL.ADAPTATION, again.CORRUPTION.NUM_EX, again.SEEDS) == ("tent", 64, [0, 1])
    summary = json.loads((folder / "summary.json").read_text())
    rows = [r for r in summary["cells"] if (r["method"], r["domain"]) == ("tent", "gaussian_noise")]
    assert next(r["mean"] for r in rows if r["metric"] == "accuracy") == pytest.approx(sum(tent) / 2)
    assert summary["complete"] is True
    assert "| tent |" in (folder / "summary.md").read_text()

    run = json.loads((folder / "run.json").read_text())
    assert re.fullmatch("[0-9a-f]{64}", run["model_sha256"]) and re.fullmatch("[0-9a-f]{64}", run["subspace_sha256"])
    assert run["versions"]["torch"] and run["extra"]["seeds"] == [0, 1]
    assert {key[4] for key in cells} == set(run["extra"]["fingerprints"].values())

    log = (folder / "log.txt").read_text().splitlines()
    errors = [line for line in log if "error %" in line]
    assert len(errors) == 6, "one line per method and domain, whatever the number of seeds"
    assert all(re.fullmatch(STAMP + r"error % \[(gaussian_noise|contrast)5\]: \d+\.\d\d%", line) for line in errors)
    assert errors[2].endswith(f"error % [gaussian_noise5]: {1 - sum(tent) / 2:.2%}")
    assert all(line in shown.err for line in errors)


def test_nothing_is_repeated_and_only_what_changed_is_computed(tmp_path, computed):
    assert main(compare(tmp_path, "tent,tent_plus")) == 0
    assert len(computed) == 4
    results = run_folder(tmp_path) / "results.jsonl"
    before = results.read_bytes()
    computed.clear()
    assert main(compare(tmp_path, "tent,tent_plus")) == 0
    assert computed == [] and results.read_bytes() == before

    assert main(compare(tmp_path, "tent,tent_plus", **{"TENT_PLUS.LAMBDA_CB": 0.5})) == 0
    assert {cell[0] for cell in computed} == {"tent_plus"} and len(computed) == 2
    computed.clear()
    assert main(compare(tmp_path, "tent", SEEDS="0,1")) == 0
    assert computed == [("tent", "gaussian_noise", 1), ("tent", "contrast", 1)]
    computed.clear()
    assert main(compare(tmp_path, "source,tent,tent_plus")) == 0
    assert {cell[0] for cell in computed} == {"source"} and len(computed) == 2
    assert results.read_bytes().startswith(before), "the file only grows"


def test_results_of_two_configs_never_mix(tmp_path):
    change = {"OPTIM.LR": 0.1}
    for folder, runs in (("both", ({}, change, {})), ("apart", (change,))):
        for changes in runs:
            assert main(compare(tmp_path / folder, "tent", **changes)) == 0
    both, apart = read_cells(tmp_path / "both"), read_cells(tmp_path / "apart")
    assert len(both) == 4 and len(apart) == 2
    changed = {key: value for key, value in both.items() if key in apart}
    plain = [value for key, value in both.items() if key not in apart]
    assert changed == apart
    assert list(changed.values()) != plain, "the change must matter, or this test shows nothing"
    summary = json.loads((run_folder(tmp_path / "both") / "summary.json").read_text())
    means = [cell["mean"] for cell in summary["cells"] if cell["metric"] == "accuracy"]
    assert means == [value["accuracy"] for value in plain], "the summary is of the last command alone"


def test_the_same_command_gives_the_same_numbers_in_another_folder(tmp_path):
    for name in ("a", "b"):
        assert main(compare(tmp_path / name, "tent,shot,ip,cattan")) == 0
    assert read_cells(tmp_path / "a") == read_cells(tmp_path / "b")


def test_killed_at_random_moments_a_run_still_ends_the_same(tmp_path):
    arguments = [compare(tmp_path / name, "source,tent,cattan", SEEDS="0,1") for name in ("whole", "killed")]
    assert main(arguments[0]) == 0
    whole, pick, kills = read_cells(tmp_path / "whole"), random.Random(0), 0
    for goal in (1, 5):
        process = start(main_in_process, arguments[1], str(tmp_path / "output"))
        while process.is_alive() and count_results(tmp_path / "killed") < goal:
            time.sleep(0.005)
        time.sleep(pick.uniform(0, 0.1))
        kills += process.is_alive()
        process.kill()
        process.join()
    assert kills and 0 < count_results(tmp_path / "killed") < len(whole), (tmp_path / "output").read_text()
    assert main(arguments[1]) == 0
    assert read_cells(tmp_path / "killed") == whole


def count_results(save) -> int:
    return sum(path.read_bytes().count(b"\n") for path in save.glob("*/results.jsonl"))


def test_ctrl_c_keeps_what_is_finished(tmp_path):
    arguments = compare(tmp_path / "save", "tent", SEEDS=",".join(map(str, range(2000))))
    process = start(main_in_process, arguments, str(tmp_path / "output"))
    deadline = time.monotonic() + 300
    while count_results(tmp_path / "save") < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    process.join(300)
    output = (tmp_path / "output").read_text()
    assert process.exitcode == 130, output
    assert "Traceback" not in output
    assert output.splitlines()[-1] == "interrupted: what is finished is kept; run the same command to resume"
    assert 2 <= len(read_cells(tmp_path / "save")) < 4000


def test_a_dry_run_computes_and_writes_nothing(tmp_path, computed, capsys):
    changes = {"CKPT_DIR": tmp_path / "ckpt", "SEEDS": "0,1"}
    assert main(compare(tmp_path / "save", "source,cattan", "--dry-run", **changes)) == 0
    shown = capsys.readouterr()
    assert "nothing was computed or written" in shown.err
    rows = {
        line.split()[0]: line.split()[1:3] for line in shown.out.splitlines() if line.startswith(("so", "ca", "al"))
    }
    assert rows == {"source": ["4", "0"], "cattan": ["4", "4"], "all": ["8", "4"]}, "results and updates"
    assert "2 domains (gaussian_noise5, contrast5)" in shown.out and "offline, 1 epoch, 64 samples" in shown.out
    assert computed == [] and list(tmp_path.iterdir()) == []


def test_a_dry_run_sweeps_over_lists(tmp_path, capsys):
    assert main(compare(tmp_path / "save", "source", "--dry-run", "--sweep", "CORRUPTION.SEVERITY=3,5")) == 0
    assert "source" in capsys.readouterr().out


def test_a_dry_run_estimates_the_time_of_every_method(tmp_path, capsys):
    names = ADAPTATION_REGISTRY.registered_names()
    assert main(compare(tmp_path / "save", ",".join(names), "--dry-run", CKPT_DIR=tmp_path / "ckpt")) == 0
    *rows, note = capsys.readouterr().out.split("time\n")[1].splitlines()
    assert [row.split()[0] for row in rows] == [*names, "all"] and "source model is not in it" in note
    assert all(re.search(r" \d+ (s|min)$", row) for row in rows)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"MODEL.CKPT_PATH": "absent.pt"}, "checkpoint absent.pt does not exist"),
        ({"CATTAN.SOURCE_BASIS": "absent.safetensors"}, "absent.safetensors does not exist"),
    ],
)
def test_a_dry_run_finds_missing_files(tmp_path, capsys, changes, words):
    assert main(compare(tmp_path, "source,cattan", "--dry-run", **changes)) == 2
    assert words in capsys.readouterr().err


def test_methods_take_their_settings_from_the_files_beside(tmp_path):
    base = "MODEL: {ARCH: small_resnet}\nCORRUPTION: {DATASET: digits_c, SEVERITY: [5]}\nTEST: {PROTOCOL: offline}\n"
    (tmp_path / "base.yaml").write_text(base)
    for name, rate in (("tent", 0.002), ("norm", 0.003), ("mine", 0.004)):
        method = "tent" if name == "mine" else name
        text = f"_BASE_: base.yaml\nMODEL: {{ADAPTATION: {method}}}\nOPTIM: {{LR: {rate}}}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    rates = {
        ("tent.yaml", "tent,norm,source"): {"tent": 0.002, "norm": 0.003, "source": 0.001},
        ("mine.yaml", "tent,norm"): {"tent": 0.004, "norm": 0.003},
        ("mine.yaml", None): {"tent": 0.004},
    }
    for number, ((file, methods), expected) in enumerate(rates.items()):
        save = tmp_path / f"save{number}"
        options = ["--methods", methods] if methods else []
        assert main(["--cfg", str(tmp_path / file), *options, *overrides(save, **{"CORRUPTION.TYPE": "contrast"})]) == 0
        found = {path.stem.split("-")[1]: load_cfg(path).OPTIM.LR for path in run_folder(save).glob("config-*.yaml")}
        assert found == expected


def test_methods_whose_files_ask_for_other_data_are_not_compared(tmp_path, capsys):
    for name, severity in (("tent", 5), ("norm", 3)):
        data = f"CORRUPTION: {{DATASET: digits_c, SEVERITY: [{severity}]}}\nTEST: {{PROTOCOL: offline}}\n"
        (tmp_path / f"{name}.yaml").write_text(f"{data}MODEL: {{ADAPTATION: {name}, ARCH: small_resnet}}\n")
    arguments = ["--cfg", str(tmp_path / "tent.yaml"), "--methods", "tent,norm", *overrides(tmp_path / "save")]
    assert main(arguments) == 2
    assert "CORRUPTION.SEVERITY = [5] and norm has [3]" in capsys.readouterr().err
    assert not (tmp_path / "save").exists()
