"""Sweeps from the command line to the table: every setting a row, none mixed with another."""

from __future__ import annotations

import json

import pytest
from digits_runs import compare, read_cells, run_folder

from tta_cattan.bench.results.store import ResultsStore
from tta_cattan.cli.main import main


def summary_of(folder) -> dict:
    return json.loads((folder / "summary.json").read_text())


def plain(save, **changes: object) -> dict[tuple[str, int], dict[str, float]]:
    """Return the metrics of a run of CATTAn without a sweep, by domain and seed."""
    assert main(compare(save, "cattan", **changes)) == 0
    return {(key[1], key[3]): value for key, value in read_cells(save).items()}


def test_every_setting_of_a_grid_has_the_results_of_a_run_of_its_own(tmp_path, capsys):
    options = ["--sweep", "CATTAN.D=4,8", "--sweep", "TEST.BATCH_SIZE=16,32"]
    one = {"CORRUPTION.TYPE": "contrast", "SEEDS": "0,1"}
    assert main(compare(tmp_path / "sweep", "source,cattan", *options, **one)) == 0
    out = capsys.readouterr().out
    folder = run_folder(tmp_path / "sweep")
    cells = read_cells(tmp_path / "sweep")
    assert len(cells) == (2 + 4) * 2 and folder.name.endswith("-by-CATTAN.D-TEST.BATCH_SIZE")
    found = {}
    for d in (4, 8):
        for batch in (16, 32):
            label = f"cattan [CATTAN.D={d}, TEST.BATCH_SIZE={batch}]"
            assert label in out and label in (folder / "summary.md").read_text()
            changes = {"CATTAN.D": d, "TEST.BATCH_SIZE": batch, **one}
            own = plain(tmp_path / f"{d}-{batch}", **changes)
            found[label] = {(key[1], key[3]): value for key, value in cells.items() if key[0] == label}
            assert found[label] == own
    assert len({str(values) for values in found.values()}) == 4, "the settings must matter, or this shows nothing"
    rows = summary_of(folder)["averages"]
    assert all(row["n_seeds"] == 2 and row["std"] is not None for row in rows)
    stamps = {record.fingerprint for record in ResultsStore(folder).records()}
    assert len(stamps) == 6 == len(list(folder.glob("config-*.yaml")))
    record = next(r for r in ResultsStore(folder).records() if r.cell.method == "cattan")
    assert record.cell.settings == (("CATTAN.D", 4), ("TEST.BATCH_SIZE", 16))


def test_a_sweep_goes_on_where_it_stopped_and_leaves_other_results_alone(tmp_path):
    assert main(compare(tmp_path, "tent")) == 0
    folder = run_folder(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for settings in ("1", "1,2"):
        assert main(compare(tmp_path, "tent", "--sweep", f"OPTIM.STEPS={settings}")) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    (swept,) = (path for path in tmp_path.iterdir() if path != folder)
    assert len(ResultsStore(swept).records()) == 4, "the cells of the first sweep are not repeated"
    assert summary_of(swept)["methods"] == ["tent [OPTIM.STEPS=1]", "tent [OPTIM.STEPS=2]"]


@pytest.mark.parametrize(
    ("sweep", "folder"),
    [("RNG_SEED=1,2", "digits_c-small_resnet-offline-by-RNG_SEED"), ("TEST.PROTOCOL=offline,online", None)],
)
def test_a_key_that_all_methods_share_can_be_swept(tmp_path, sweep, folder):
    assert main(compare(tmp_path, "tent,cattan", "--sweep", sweep)) == 0
    name = run_folder(tmp_path).name
    assert name == folder if folder else name.startswith("digits_c-small_resnet-") and "offline" not in name
    cells = read_cells(tmp_path)
    assert len({key[4] for key in cells}) == 4 and len(cells) == 8
    assert len({str(value) for value in cells.values()}) > 4, "another model or protocol gives other figures"


def test_rows_of_a_sweep_may_have_other_domains(tmp_path, capsys):
    options = ["--sweep", "CORRUPTION.TYPE=[gaussian_noise,contrast],fog"]
    changes = {"CORRUPTION.TYPE": "fog"}
    assert main(compare(tmp_path, "source", *options, "--dry-run")) == 2
    assert "given twice" in capsys.readouterr().err
    arguments = compare(tmp_path, "source", *options, **changes)
    where = arguments.index("CORRUPTION.TYPE")
    assert main(arguments[:where] + arguments[where + 2 :]) == 0
    assert len(read_cells(tmp_path)) == 3 and summary_of(run_folder(tmp_path))["complete"]
