"""The report of a stream: windows over the bands of its domains, accuracy by domain, damage tolerated."""

from __future__ import annotations

import numpy as np
import pytest
from runs_by_hand import predictions

from tta_cattan.bench.report import figures
from tta_cattan.bench.report.comparison import group_runs
from tta_cattan.bench.report.page import facts, write_report
from tta_cattan.bench.report.pairs import compare_all
from tta_cattan.bench.report.plots import corruption_bands, plots_of
from tta_cattan.bench.report.reading import StreamFacts, find_runs
from tta_cattan.bench.report.tables import tables_of
from tta_cattan.bench.results.store import Cell, Record, ResultsStore

INFO = {
    "windows": {"size": 4, "correct": [4, 2, 1]},
    "visits": [
        {"domain": "fog1", "n": 3, "correct": 3},
        {"domain": "fog2", "n": 3, "correct": 2},
        {"domain": "fog1", "n": 4, "correct": 2},
    ],
    "bands": [[0, 3], [3, 6], [6, 10]],
    "collapsed_at": [8, 9],
}


def record(method="tent", seed=0, info=INFO, n=10):
    right = np.arange(n) < 7
    columns = predictions(right)
    columns["index"] = (np.arange(n) % 3).astype(np.int32)  # an image is seen again and again
    return Record(Cell(method, "gradual", 0, seed), "abc", {"accuracy": 0.7, "n": n}, info, columns)


def comparison(folder, *records):
    store = ResultsStore(folder)
    for one in records:
        store.append(one)
    (found,) = group_runs(find_runs([folder]))
    return found


def test_facts_of_a_record():
    found = StreamFacts.of(record())
    assert found.windows == [(2.0, 1.0), (6.0, 0.5), (9.0, 0.5)], "the last window is short"
    assert found.domains == {"fog1": 5 / 7, "fog2": 2 / 3}
    assert found.bands == [("fog1", 0, 3), ("fog2", 3, 6), ("fog1", 6, 10)] and found.collapsed_at == [8, 9]
    assert corruption_bands(found.bands) == [("fog", 0, 10)]


@pytest.mark.parametrize(
    "change",
    [{"windows": {"size": 0, "correct": []}}, {"windows": 3}, {"visits": [{}]}, {"bands": [[1]]}, {"collapsed_at": 1}],
)
def test_a_damaged_record_is_left_out(change, tmp_path):
    assert StreamFacts.of(record(info={**INFO, **change})) is None
    found = comparison(tmp_path, record(info={**INFO, **change}))
    assert "windows" not in [plot.name for plot in plots_of(found)]


def test_figure_table_and_pairs_of_a_stream(tmp_path):
    other = {**INFO, "collapsed_at": []}
    found = comparison(tmp_path, record(), record(seed=1), record("norm", info=other), record("norm", 1, other))
    (plot,) = [plot for plot in plots_of(found) if plot.name == "windows"]
    (axes,) = plot.figure.axes
    tent, cross, norm = axes.lines
    assert list(tent.get_xdata()) == [2, 6, 9] and list(tent.get_ydata()) == list(norm.get_ydata()) == [100, 50, 50]
    assert list(cross.get_xdata()) == [8, 8], "the first collapse of each seed"
    assert [text.get_text() for text in axes.texts] == ["fog"]
    pairs = compare_all(found)
    table = tables_of(found, pairs)["domains"]
    assert table.heads == ["method", "fog1", "fog2"] and [entry.text for entry in table.rows[0][1:]] == ["71.4", "66.7"]
    assert "1 stream" in facts(found) and "10 samples per stream" in facts(found)
    assert pairs["TENT", "Norm"].images == 3, "three images, however often they were seen"
    assert "Accuracy in windows of the stream" in write_report([tmp_path], tmp_path / "out").read_text()


def test_a_watched_stream_shows_the_estimate_and_the_drift(tmp_path):
    watched = {"readings": [[4, 0.9, 0.8, 1.0, 0.1], [8, 0.6, 0.5, 0.7, 0.4]], "changes": [5]}
    found = comparison(tmp_path, record(info={**INFO, "monitor": watched}), record("norm"))
    (plot,) = [plot for plot in plots_of(found) if plot.name == "monitor"]
    above, below = plot.figure.axes
    truth, estimate = above.lines
    assert list(truth.get_ydata()) == [100, 50, 50] and list(estimate.get_ydata()) == [90, 60]
    drift, change = below.lines
    assert list(drift.get_ydata()) == [0.1, 0.4] and list(change.get_xdata()) == [5, 5]
    damaged = comparison(tmp_path / "other", record(info={**INFO, "monitor": {"readings": 3}}))
    assert not {"monitor", "windows"} & {plot.name for plot in plots_of(damaged)}


def test_mcnemar_is_for_images_that_are_seen_once(tmp_path):
    found = comparison(tmp_path, record(), record("norm"))
    assert compare_all(found)["TENT", "Norm"].p_value is None


def test_a_mixed_stream_has_no_bands_and_narrow_bands_no_names():
    curve = {"TENT": figures.Curve([1, 2], [0.5, 0.6])}
    (axes,) = figures.stream(curve, [], {}, "images", "accuracy").axes
    assert not axes.texts and not axes.patches
    bands = [(f"d{n}", n, n + 1) for n in range(100)]
    (axes,) = figures.stream(curve, bands, {}, "images", "accuracy").axes
    assert not axes.texts and len(axes.patches) == 50
