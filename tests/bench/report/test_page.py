"""The page holds what the runs hold, in one file, whatever the names in it are."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser

import numpy as np
from runs_by_hand import HOSTILE, write_bare_run, write_run

from tta_cattan.bench.report.comparison import group_runs
from tta_cattan.bench.report.figures import MOST_ROWS
from tta_cattan.bench.report.page import write_report
from tta_cattan.bench.report.plots import plots_of
from tta_cattan.bench.report.reading import find_runs
from tta_cattan.bench.report.tables import tables_of
from tta_cattan.bench.results.store import Cell, Record, ResultsStore
from tta_cattan.cli.main import main

RIGHT = np.array([True, False, True, True])


class Elements(HTMLParser):
    """All tags with their attributes, and the text outside of script and style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if not self.tags or self.tags[-1][0] not in ("script", "style"):
            self.text += data


def test_the_page_needs_nothing_but_itself(page):
    elements = Elements(page.read_text(encoding="utf-8"))
    for tag, attributes in elements.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), tag
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "action", "srcset"):
                assert value.startswith("#"), f"{tag} {name}={value}"
            assert not name.startswith("on"), f"{tag} {name}"
    assert not re.search(r"@import|url\((?!#)", page.read_text(encoding="utf-8"))


def test_every_figure_and_table_of_a_real_run_is_there_and_a_file(page):
    text = page.read_text(encoding="utf-8")
    titles = ("Summary", "Is the difference real?", "Accuracy by domain", "Accuracy over epochs", "Reliability", "Cost")
    for title in (*titles, "Dimension of CATTAn", "What was run"):
        assert f"<h3>{title}" in text, title
    kinds = ("accuracy", "epochs", "reliability", "cost", "dimension-3")
    names = {path.name for path in (page.parent / "figures").iterdir()}
    assert names == {f"digits-c-small-resnet-offline-{kind}.{suffix}" for kind in kinds for suffix in ("svg", "png")}
    tables = {path.name.removeprefix("digits-c-small-resnet-offline-") for path in (page.parent / "tables").iterdir()}
    kinds = ("summary", "paired", "by-domain")
    assert "All methods ran under the same settings" in text
    assert tables == {f"{kind}.{suffix}" for kind in kinds for suffix in ("md", "csv", "tex")}


def test_the_numbers_are_those_of_the_results(run, page):
    (path,) = (page.parent / "tables").glob("*-summary.csv")
    rows = {row["method"]: row for row in csv.DictReader(path.open(encoding="utf-8"))}
    records = ResultsStore(run).records()
    for name, method in (("Source", "source"), ("CATTAn", "cattan")):
        mine = [record.metrics for record in records if record.cell.method == method]
        assert rows[name]["Accuracy (%)"].startswith(f"{100 * np.mean([m['accuracy'] for m in mine]):.1f} ±")
        assert rows[name]["NLL"].startswith(f"{np.mean([m['nll'] for m in mine]):.3f} ±")
        assert rows[name]["Kept beside TENT's (kB)"].startswith(
            f"{np.mean([m['extra_bytes'] for m in mine]) / 1e3:.1f}"
        )
    text = Elements(page.read_text(encoding="utf-8")).text
    description = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert description["model_sha256"] in text and description["versions"]["torch"] in text
    assert all(record.fingerprint in text for record in records)


def test_hostile_names_are_shown_not_run(tmp_path):
    about = {"config": {"CORRUPTION": {"DATASET": HOSTILE}, "DESC": HOSTILE}, "model_sha256": HOSTILE,
             "versions": {HOSTILE: HOSTILE}, "extra": {"protocol": HOSTILE}}  # fmt: skip
    squares = {(f"{name}{HOSTILE}", f"{HOSTILE}{domain}", 0): RIGHT for name in "ab" for domain in "cd"}
    folder = write_run(tmp_path / "run", squares, description=about, epochs=[0.5, 0.6])
    page = write_report([folder], tmp_path / "out")
    elements = Elements(page.read_text(encoding="utf-8"))
    assert [tag for tag, _ in elements.tags].count("script") == 1, "its own"
    assert elements.text.count(HOSTILE) > 10, "escaped, and so shown as it is"
    assert "script-src 'sha256-" in page.read_text(encoding="utf-8"), "and no other script may run"
    assert {path.parent.name for path in (tmp_path / "out").rglob("*") if path.is_file()} == {
        "out",
        "figures",
        "tables",
    }
    for path in (tmp_path / "out" / "tables").glob("*.md"):
        assert "<script" not in path.read_text(encoding="utf-8")


def test_results_without_predictions_and_curves_have_gaps_and_nothing_else(tmp_path):
    about = {
        "config": {"CORRUPTION": {"DATASET": "cifar10_c"}, "MODEL": {"ARCH": "r"}},
        "extra": {"protocol": "online"},
    }
    page = write_report([write_bare_run(tmp_path / "run", about)], tmp_path / "out")
    text = page.read_text(encoding="utf-8")
    assert "<h3>Accuracy by domain" in text and "<h3>Cost" in text, "the time was known"
    for title in ("Reliability", "over epochs", "over the stream", "Dimension", "Is the difference real?"):
        assert f"<h3>{title}" not in text and f"{title}</h3>" not in text
    assert "without predictions per image, nothing can be said about luck" in text
    assert "OPTIM.LR" in text


def test_damaged_facts_are_gaps(tmp_path):
    info = {"reliability": {"count": [1]}, "epochs": "x", "stream": {"seen": [0], "correct": [0]}, "dimension": 3}
    folder = write_run(tmp_path / "run", {("cattan", "fog", 0): RIGHT}, **info)
    text = write_report([folder], tmp_path / "out").read_text(encoding="utf-8")
    assert "<h3>Accuracy by domain" in text and "<h3>Reliability" not in text and "<h3>Dimension" not in text


def test_metrics_of_other_protocols_are_columns(tmp_path):
    store = ResultsStore(tmp_path / "run")
    store.append(Record(Cell("tent", "fog", 5, 0), "f", {"auroc": 0.75, "n": 4}))
    write_report([tmp_path / "run"], tmp_path / "out")
    (path,) = (tmp_path / "out" / "tables").glob("*-summary.csv")
    assert path.read_text(encoding="utf-8") == "method,auroc\nTENT,0.75\n"


def test_the_stream_is_drawn(tmp_path):
    squares = {("tent", "fog", seed): RIGHT for seed in (0, 1)}
    folder = write_run(tmp_path / "run", squares, stream={"seen": [2, 4], "correct": [1, 3]})
    assert "<h3>Accuracy over the stream" in write_report([folder], tmp_path / "out").read_text(encoding="utf-8")


def test_the_command_refuses_what_is_no_run(tmp_path, capsys):
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error:") and error.count("\n") == 1 and "results.jsonl" in error
    assert not (tmp_path / "out").exists()


def test_a_missing_library_is_one_line(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    assert main(["report", str(run), "--out", str(tmp_path)]) == 2
    assert "pip install 'tta-cattan[report]'" in capsys.readouterr().err


def test_a_sweep_is_drawn_against_its_key_and_cost_is_a_multiple_of_the_source_models(tmp_path):
    for d, right in ((4, [1, 0, 0, 0]), (64, [1, 1, 1, 0]), (16, [1, 1, 0, 0])):
        settings = (("CATTAN.D", d), ("CATTAN.LAYER", "fc"))
        write_run(tmp_path, {("cattan", "fog", 0): np.array(right, bool)}, stamp=f"a{d}", settings=settings)
    write_run(tmp_path, {("source", "fog", 0): RIGHT})
    (comparison,) = group_runs(find_runs([tmp_path]))
    plots = {plot.name: plot for plot in plots_of(comparison)}
    assert [name for name in plots if name.startswith("sweep")] == ["sweep-CATTAN.D"], "names have no axis"
    line, level = plots["sweep-CATTAN.D"].figure.axes[0].lines
    assert list(line.get_xdata()) == [4, 16, 64] and list(line.get_ydata()) == [25, 50, 75]
    assert list(level.get_ydata()) == [75, 75] and "Dashed" in plots["sweep-CATTAN.D"].caption
    assert "band" not in plots["sweep-CATTAN.D"].caption, "one seed has none"
    assert "1.0 ×" in {text.get_text().split("(")[-1].rstrip(")") for text in plots["cost"].figure.axes[0].texts}
    table = tables_of(comparison, {})["overview"]
    assert table.heads[table.heads.index("Seconds") + 1] == "× Source" and {row[-1].text for row in table.rows} == {
        "1.0"
    }


def test_a_large_sweep_has_no_figure_with_a_colour_per_row(tmp_path):
    for d in range(1, MOST_ROWS + 2):
        settings = (("CATTAN.D", d),)
        write_run(tmp_path, {("cattan", "fog", 0): RIGHT}, stamp=f"a{d}", settings=settings)
    (comparison,) = group_runs(find_runs([tmp_path]))
    assert [plot.name for plot in plots_of(comparison)] == ["sweep-CATTAN.D", "cost"]
