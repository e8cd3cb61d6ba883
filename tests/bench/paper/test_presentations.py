"""What each kind of study shows, from results that are written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from yacs.config import CfgNode

from tta_cattan.bench.paper.present import present_dimension, present_recovery, present_sweep, present_table
from tta_cattan.bench.paper.study import Study, data_differences, setting_differences
from tta_cattan.bench.results.published import published
from tta_cattan.bench.results.store import Cell, Record
from tta_cattan.bench.results.summary import summarise
from tta_cattan.bench.results.table import Table
from tta_cattan.bench.run.plan import Row
from tta_cattan.bench.run.runner import Outcome
from tta_cattan.config import load_cfg
from tta_cattan.util.errors import UserError

pytest.importorskip("matplotlib")


def gathered(rows: list[Row], values: dict[tuple[str, str, int], dict], **info) -> Outcome:
    """Return results: (label, domain, seed) -> metrics."""
    known = {one.label: one for one in rows}
    records = []
    for (label, domain, seed), metrics in values.items():
        method, settings = (known[label].method, known[label].changes) if label in known else (label, ())
        records.append(Record(Cell(method, domain, 5, seed, settings), "f", {"n": 64, "ece": 0.1, **metrics}, info))
    return Outcome(rows, summarise(records), records, [Path("out")])


def texts(table: Table, columns: int) -> list[tuple[str, ...]]:
    """Return the texts of the first columns."""
    return [tuple(entry.text for entry in row[:columns]) for row in table.rows]


def study(kind: str, **changes) -> Study:
    return Study("name", "title", kind, "cfg", ("cattan",), **changes)


def row(method: str, *changes: tuple) -> Row:
    return Row(load_cfg(None, ["MODEL.ADAPTATION", method]), changes)


TABLE = {
    ("cattan", "gaussian_noise", 0): {"accuracy": 0.30},
    ("cattan", "gaussian_noise", 1): {"accuracy": 0.34},
    ("norm", "gaussian_noise", 0): {"accuracy": 0.10},
    ("norm", "gaussian_noise", 1): {"accuracy": 0.10},
}


@pytest.mark.parametrize("same", [True, False])
def test_a_table_has_ours_the_published_and_the_difference(same):
    shown = present_table(study("table", published={"": "imagenet_c"}), gathered([row("cattan")], TABLE), same)
    (table,) = shown.tables
    assert table.heads == ["method", "", "gauss", "avg", "ECE"]
    theirs = published("imagenet_c").rows["cattan"]
    by = {(r[0].text, r[1].text): r[2:] for r in table.rows}
    ours = by["CATTAn", "ours"][0]
    assert (ours.value, ours.std) == (pytest.approx(32.0), pytest.approx(2.8284, abs=1e-3))
    noise = theirs.accuracy["gaussian_noise"]
    assert [one.value for one in by["", "published"]] == [noise, noise, None], "an average is of the same columns"
    assert ("Norm", "ours") in by, "a method that the paper does not have stands alone"
    if same:
        difference, _, ece = by["", "difference"]
        assert difference.value == pytest.approx(32.0 - 26.02) and difference.text == "+6.0"
        assert ece.value is None and ece.text == "-", "no ECE is published for it"
    else:
        assert ("", "difference") not in by, "figures of other data are not subtracted"
    (axes,) = shown.figures[""].axes
    assert sorted(bar.get_height() for bar in axes.patches) == pytest.approx([10, 10, 32, 32])


@pytest.mark.parametrize(("dataset", "beside"), [("officehome", 52.81), ("pointda10", None)])
def test_pairs_of_other_domains_are_not_taken_for_the_papers_by_their_letters(dataset, beside):
    line = Row(load_cfg(None, ["MODEL.ADAPTATION", "cattan", "CORRUPTION.DATASET", dataset]))
    found = gathered([line], {("cattan", "A>C", 0): {"accuracy": 0.4}})
    shown = present_table(study("table", published={"": "officehome"}, pairs=True), found, False)
    (_, theirs) = shown.tables[0].rows
    assert theirs[2].value == beside
    assert theirs[3].value == (52.81 if beside else 67.68), "the average of the columns shown, or the printed one"


def test_all_columns_have_the_printed_average():
    line = published("office31").rows["cattan"]
    values = {("cattan", column, 0): {"accuracy": 0.8} for column in line.accuracy}
    shown = present_table(study("table", published={"": "office31"}), gathered([row("cattan")], values), True)
    _, theirs, difference = shown.tables[0].rows
    assert [one.value for one in theirs[-2:]] == [85.12, pytest.approx(7.0)]
    assert difference[-2].value == pytest.approx(80 - 85.12)


def swept(*settings):
    key = "CATTAN.LAMBDA_CB"
    rows = [row("tent_plus"), *(row("cattan", (key, value)) for value in settings)]
    values = {("tent_plus", "fog", seed): {"accuracy": 0.5} for seed in (0, 1)}
    for place, one in enumerate(rows[1:]):
        values |= {(one.label, "fog", seed): {"accuracy": 0.6 + 0.1 * place + 0.02 * seed} for seed in (0, 1)}
    return gathered(rows, values)


def test_a_sweep_over_numbers_is_a_line_with_a_band_and_levels():
    shown = present_sweep(study("sweep", says="stable"), swept(0.0, 0.4), False)
    (table,) = shown.tables
    assert texts(table, 2) == [("-", "TENT+"), ("0.0", "CATTAn"), ("0.4", "CATTAn")]
    assert (table.rows[2][2].value, table.rows[2][2].std) == (pytest.approx(71.0), pytest.approx(1.41421, abs=1e-4))
    (axes,) = shown.figures[""].axes
    line, level = axes.lines
    assert list(line.get_xdata()) == [0.0, 0.4] and list(line.get_ydata()) == pytest.approx([61, 71])
    assert level.get_ydata()[0] == pytest.approx(50) and len(axes.collections) == 1
    assert shown.remarks == ("The paper: stable",)


def test_a_sweep_over_words_is_bars_beside_published_averages():
    tables = {"plain": "officehome", "robust": "officehome_robust"}
    shown = present_sweep(study("sweep", published=tables), swept("plain", "robust"), True)
    rows = {r[0].text: [one.value for one in r] for r in shown.tables[0].rows}
    assert rows["robust"][4] == 69.29 and rows["robust"][5] == pytest.approx(71.0 - 69.29)
    assert rows["-"][4] is None
    (axes,) = shown.figures[""].axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["plain", "robust"]


def test_two_keys_are_refused():
    rows = [row("cattan", ("CATTAN.D", 1), ("TEST.EPOCHS", 2))]
    with pytest.raises(UserError, match="over one key"):
        present_sweep(study("sweep"), gathered(rows, {(rows[0].label, "fog", 0): {"accuracy": 0.5}}), False)


def test_the_dimension_figure_is_of_the_stored_curve():
    curve = {"d": [1, 2, 3], "target": [3.0, 2.0, 1.0], "source": [4.0, 2.0, 1.0], "bound": [0.1, 0.2, 1.5]}
    values = {("cattan", name, seed): {"accuracy": 0.5} for name in ("fog", "snow") for seed in (0, 1)}
    found = gathered([row("cattan")], values, dimension=curve, d_target=2)
    shown = present_dimension(study("dimension"), found, False)
    assert texts(shown.tables[0], 4) == [("fog5", "64", "3", "2"), ("snow5", "64", "3", "2")]
    assert list(shown.figures) == ["", "-2"]
    with pytest.raises(UserError, match="add cattan"):
        present_dimension(study("dimension"), gathered([row("tent")], {("tent", "fog", 0): {"accuracy": 1}}), False)


def test_recovery_says_which_fall_back_recovers_more():
    counts = {
        "source": {"n": [10, 0, 0, 90], "adapted": [2, 0, 0, 80], "bypass": [5, 0, 0, 81], "source": [9, 0, 0, 89]},
        "target": {"n": [0, 4, 0, 96], "adapted": [0, 3, 0, 90], "bypass": [0, 2, 0, 80], "source": [0, 1, 0, 50]},
    }
    found = gathered([row("cattan")], {("cattan", "usps", 0): {"accuracy": 0.5}}, agreement=counts)
    shown = present_recovery(study("recovery"), found, False)
    overview, sweep = shown.tables
    assert [one.value for one in overview.rows[0][1:]] == pytest.approx(
        [82, 85, 89, 98, 93, 92, 91, 10, 4, 53.0], abs=0.5
    )
    at = {(r[1].text, r[2].text): [one.value for one in r[3:]] for r in sweep.rows}
    assert at["source", "0.00"] == pytest.approx([82, 93, 0, 0]) and at["bypass", "1.00"] == pytest.approx(
        [85, 92, 10, 4]
    )
    assert "'source' recovers more (bypass: source +3.00, target -1.00 points; source: source +7.00" in shown.remarks[0]
    with pytest.raises(UserError, match="leave the protocol"):
        present_recovery(study("recovery"), gathered([row("tent")], {("tent", "fog", 0): {"accuracy": 1}}), False)


def config(*overrides) -> CfgNode:
    return load_cfg("cfgs/imagenet_c/cattan.yaml", list(overrides))


def test_other_data_and_other_settings_are_named():
    paper = config()
    assert not data_differences(paper, config("DATA_DIR", "/x", "DEVICE", "cpu"))
    assert not setting_differences(paper, config("SAVE_DIR", "/x", "CKPT_DIR", "/y", "RECOVERY.TAU", 0.5))
    assert data_differences(paper, config("CORRUPTION.NUM_EX", 64)) == ["CORRUPTION.NUM_EX 64 instead of 5000"]
    assert not data_differences(paper, config("CORRUPTION.NUM_EX", 64), ["CORRUPTION.NUM_EX"])
    assert setting_differences(paper, config("SEEDS", "0", "TEST.EPOCHS", 2)) == [
        "TEST.EPOCHS 2 instead of 5",
        "SEEDS 0 instead of 0,1,2",
    ]
    other = load_cfg("cfgs/cifar10_c/cattan.yaml")
    assert data_differences(paper, other) == ["cifar10_c instead of imagenet_c", "Standard instead of Standard_R50"]
    same_model = load_cfg("cfgs/cifar10_c/cattan.yaml", ["MODEL.ARCH", "Standard_R50"])
    assert data_differences(paper, same_model) == ["cifar10_c instead of imagenet_c"]
