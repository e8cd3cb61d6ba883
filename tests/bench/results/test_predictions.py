"""Predictions are on the disk before the result's line, and damage to them costs nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from digits_runs import compare, run_folder
from safetensors.numpy import save_file

from tta_cattan.bench.results.store import Cell, Record, ResultsStore, predictions_path, read_predictions
from tta_cattan.bench.run.cell import COST_METRICS
from tta_cattan.cli.main import main
from tta_cattan.util.errors import UserError

CELL = Cell("tent", "fog", 5, 0)


def columns(n=6):
    return {
        "index": np.arange(n, dtype=np.int32),
        "prediction": np.zeros(n, np.int16),
        "confidence": np.full(n, 0.5, np.float32),
        "label": np.ones(n, np.int16),
    }


def test_round_trip_through_the_store(tmp_path):
    store = ResultsStore(tmp_path)
    store.append(Record(CELL, "f", {"accuracy": 0.0}, {}, columns()))
    found = read_predictions(predictions_path(tmp_path, CELL, "f"))
    assert found is not None and all(np.array_equal(found[name], value) for name, value in columns().items())
    assert store.records() == [Record(CELL, "f", {"accuracy": 0.0})], "the line holds no predictions"
    assert read_predictions(predictions_path(tmp_path, CELL, "g")) is None


def test_no_line_without_its_predictions(tmp_path):
    (tmp_path / "predictions").write_text("in the way")
    store = ResultsStore(tmp_path)
    with pytest.raises(UserError):
        store.append(Record(CELL, "f", {"accuracy": 0.0}, {}, columns()))
    assert store.records() == []


@pytest.mark.parametrize("method", ["../../x", "a/b", "cattan [CATTAN.D=64]", "x" * 400, "\u00fc\x00"])
def test_any_name_stays_in_the_folder(tmp_path, method):
    cell = Cell(method, "fog", 5, 0)
    path = predictions_path(tmp_path, cell, "f")
    assert path.parent == tmp_path / "predictions" and len(path.name) < 150
    assert path != predictions_path(tmp_path, Cell(method + "!", "fog", 5, 0), "f")
    ResultsStore(tmp_path).append(Record(cell, "f", {}, {}, columns()))
    assert read_predictions(path) is not None


def test_damage_is_left_out_with_a_warning(tmp_path, caplog):
    path = predictions_path(tmp_path, CELL, "f")
    path.parent.mkdir()
    ragged = {**columns(), "label": np.zeros(3, np.int16)}
    for number, write in enumerate(
        (
            lambda: path.write_bytes(b"\x80\x04no pickle is read"),
            lambda: save_file({"index": np.arange(3)}, path),
            lambda: save_file(ragged, path),
        )
    ):
        write()
        assert read_predictions(path) is None
        assert len(caplog.records) == number + 1 and path.name in caplog.text


def test_a_run_stores_all_that_a_report_needs(tmp_path):
    for protocol, curve in (("offline", "epochs"), ("online", "stream")):
        save = tmp_path / protocol
        assert main(compare(save, "source,cattan", **{"TEST.PROTOCOL": protocol})) == 0
        for record in ResultsStore(run_folder(save)).records():
            found = read_predictions(predictions_path(run_folder(save), record.cell, record.fingerprint))
            metrics = record.metrics
            assert metrics["accuracy"] == pytest.approx((found["prediction"] == found["label"]).mean())
            assert {"nll", "brier", "ece", "n", "extra_bytes", *COST_METRICS} <= metrics.keys()
            assert metrics["peak_memory"] > 1e6 and metrics["images_per_second"] > 0
            assert curve in record.info and sum(record.info["reliability"]["count"]) == metrics["n"] == 64
            if record.cell.method == "cattan":
                assert metrics["extra_bytes"] > 0
                assert ("dimension" in record.info) == (protocol == "offline")
