"""Summaries against numpy, and every rendering read back."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest

from tta_cattan.bench import Domain
from tta_cattan.bench.results.store import Cell, Record
from tta_cattan.bench.results.summary import summarise
from tta_cattan.util.errors import UserError

# As the paper's table heads them.
HEADS = {
    "gaussian_noise": "gauss",
    "shot_noise": "shot",
    "impulse_noise": "impulse",
    "defocus_blur": "defocus",
    "glass_blur": "glass",
    "motion_blur": "motion",
    "zoom_blur": "zoom",
    "snow": "snow",
    "frost": "frost",
    "fog": "fog",
    "brightness": "bright",
    "contrast": "contrast",
    "elastic_transform": "elastic",
    "pixelate": "pixel",
    "jpeg_compression": "jpeg",
}
CORRUPTIONS = list(HEADS)
METHODS = ["source", "norm", "tent", "tent_plus", "shot", "ip", "cattan"]


def record(method: str, domain: str, seed: int, severity: int = 5, stamp: str = "f", **metrics: float) -> Record:
    return Record(Cell(method, domain, severity, seed), stamp, metrics, {})


@pytest.fixture
def values() -> np.ndarray:
    """Accuracy of methods x corruptions x 3 seeds."""
    return np.random.default_rng(0).uniform(0.1, 0.99, (len(METHODS), len(CORRUPTIONS), 3))


def full_records(values: np.ndarray) -> list[Record]:
    return [
        record(METHODS[m], CORRUPTIONS[d], s, accuracy=values[m, d, s], ece=values[m, d, s] / 3, n=100)
        for s, m, d in product(range(3), range(len(METHODS)), range(len(CORRUPTIONS)))
    ]


def markdown_rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]


def test_numbers_agree_with_numpy(values):
    summary = summarise(full_records(values))
    assert summary.methods == tuple(METHODS) and summary.metrics == ("accuracy", "ece", "n")
    assert summary.domains == tuple(Domain(name, 5) for name in CORRUPTIONS)
    assert summary.domains[0].label == "gaussian_noise5"
    assert summary.complete and summary.missing == 0
    for (m, method), (d, domain) in product(enumerate(summary.methods), enumerate(summary.domains)):
        found = summary.cells[method, domain, "accuracy"]
        assert found.mean == pytest.approx(np.mean(values[m, d]), rel=1e-12)
        assert found.std == pytest.approx(np.std(values[m, d], ddof=1), rel=1e-12)
        assert found.n_seeds == 3
    for m, method in enumerate(METHODS):
        per_seed = values[m].mean(axis=0) / 3
        assert summary.averages[method, "ece"].mean == pytest.approx(per_seed.mean(), rel=1e-12)
        assert summary.averages[method, "ece"].std == pytest.approx(per_seed.std(ddof=1), rel=1e-12)


def test_one_seed_has_no_deviation_and_none_has_no_entry():
    summary = summarise([record("a", "fog", 0, accuracy=0.5), record("b", "snow", 0, accuracy=0.6)])
    assert summary.cells["a", Domain("fog", 5), "accuracy"].std is None
    assert ("a", Domain("snow", 5), "accuracy") not in summary.cells
    assert summary.averages == {}
    assert summary.missing == 2 and not summary.complete
    empty = summarise([])
    assert empty.methods == () and empty.complete


def test_averages_use_only_seeds_with_every_domain():
    records = [record("a", domain, seed, accuracy=seed / 10) for domain in ("fog", "snow") for seed in (1, 2, 3)]
    summary = summarise(records[:-1])
    assert summary.missing == 1
    assert summary.cells["a", Domain("fog", 5), "accuracy"].n_seeds == 3
    found = summary.averages["a", "accuracy"]
    assert (found.mean, found.n_seeds) == (pytest.approx(0.15), 2)
    assert found.std == pytest.approx(np.std([0.1, 0.2], ddof=1))


def test_expected_cells_count_even_where_nothing_was_seen():
    plan = [Cell(method, domain, 5, 0) for method in ("b", "a") for domain in ("fog", "snow", "frost")]
    done = [record("a", "snow", 0, accuracy=0.5), record("a", "fog", 0, accuracy=0.7)]
    summary = summarise(done, expected=plan)
    assert summary.missing == 4 and not summary.complete
    assert summary.methods == ("b", "a") and [d.name for d in summary.domains] == ["fog", "snow", "frost"]
    assert summary.averages == {}, "a mean over fewer domains would pass for the mean over all"
    assert "Incomplete (results missing: 4)" in summary.to_text()
    assert summarise(done, expected=[one.cell for one in done]).complete


def test_two_configurations_of_one_cell_are_not_mixed():
    with pytest.raises(UserError, match="f1 and f2"):
        summarise([record("a", "fog", 0, stamp="f1", accuracy=0.5), record("a", "fog", 0, stamp="f2", accuracy=0.6)])
    sweep = [record("a", "fog", 0, stamp="f1", accuracy=0.5), record("b", "fog", 0, stamp="f2", accuracy=0.6)]
    assert summarise(sweep).methods == ("a", "b")


def test_markdown_is_a_table_with_the_best_in_bold_and_the_second_underlined(values):
    rows = markdown_rows(summarise(full_records(values)).table().to_markdown())
    assert rows[0] == ["method", *HEADS.values(), "avg"]
    assert {len(row) for row in rows} == {17}
    means = values.mean(axis=2)
    for m, row in enumerate(rows[2:]):
        assert row[0] == METHODS[m]
        for d in range(15):
            text = f"{100 * means[m, d]:.1f}"
            rank = (means[:, d] > means[m, d]).sum()
            assert row[1 + d] == {0: f"**{text}**", 1: f"<u>{text}</u>"}.get(rank, text)
    best = means.mean(axis=1).argmax()
    std = values[best].mean(axis=0).std(ddof=1)
    assert rows[2 + best][-1] == f"**{100 * means[best].mean():.1f} ± {100 * std:.1f}**"


def test_markdown_of_ece_prefers_the_lowest_and_ties_share_the_bold():
    records = [record(name, "fog", 0, ece=ece, n=3) for name, ece in (("a", 0.2), ("b", 0.101), ("c", 0.099))]
    summary = summarise([*records, record("d", "snow", 0, ece=0.5, n=3)])
    assert markdown_rows(summary.table("ece").to_markdown())[2:] == [
        ["a", "0.20", "-", "-"],
        ["b", "**0.10**", "-", "-"],
        ["c", "**0.10**", "-", "-"],
        ["d", "-", "**0.50**", "-"],
    ]
    assert "**" not in summary.table("n").to_markdown(), "a count has no best"


def test_markdown_cells_cannot_break_the_table():
    summary = summarise([record("a|b", "x|\ny", 0, severity=0, accuracy=0.5)])
    assert summary.table().to_markdown().splitlines()[0] == r"| method | x\| y | avg |"
    assert summary.table().to_markdown().splitlines()[2] == r"| a\|b | **50.0** | **50.0** |"


def test_json_holds_everything(values):
    summary = summarise(full_records(values)[:-1])
    read = json.loads(summary.to_json())
    assert read["methods"] == METHODS and read["complete"] is False and read["missing"] == 1
    assert read["domains"][0] == {"domain": "gaussian_noise", "severity": 5, "label": "gaussian_noise5"}
    cells = {(c["method"], c["domain"], c["metric"]): c for c in read["cells"]}
    assert cells["norm", "snow", "ece"]["mean"] == summary.cells["norm", Domain("snow", 5), "ece"].mean
    averages = {(a["method"], a["metric"]): a for a in read["averages"]}
    assert averages["cattan", "accuracy"]["n_seeds"] == 2
    assert averages["cattan", "accuracy"]["std"] == summary.averages["cattan", "accuracy"].std


def test_text_is_aligned_and_fits_the_terminal(values):
    records = [one for one in full_records(values) if (one.cell.method, one.cell.domain) != ("shot", "fog")]
    lines = summarise(records).to_text().splitlines()
    table = lines[: 1 + len(METHODS)]
    assert len({len(line) for line in table}) == 1 and len(table[0]) <= 200
    assert table[0].split() == ["method", *HEADS.values(), "avg", "ECE"]
    tent = table[3].split()
    assert tent[:2] == ["tent", f"{100 * values[2, 0].mean():.1f}"]
    per_seed = values[2].mean(axis=0)
    assert tent[16:18] == [f"{100 * per_seed.mean():.1f}", f"({100 * per_seed.std(ddof=1):.1f})"]
    assert tent[18] == f"{per_seed.mean() / 3:.2f}"
    shot = table[5].split()
    assert shot[10] == "-" and shot[16:] == ["-", "-"], "no value in one column, so no average"


def test_text_of_a_stream_has_it_once_with_its_worst_window_and_clean_data():
    metrics = {"accuracy": 0.5, "ece": 0.1, "worst_window": 0.25, "clean_accuracy": 0.9}
    heads, row = summarise([record("tent", "continual", 0, 0, **metrics)]).to_text().splitlines()[:2]
    assert heads.split() == ["method", "continual", "worst", "clean", "ECE"]
    assert row.split() == ["tent", "50.0", "25.0", "90.0", "0.10"]


def test_text_of_many_columns_is_wrapped_and_names_severities():
    records = [record("tent", name, 0, severity, accuracy=0.5) for name, severity in product(CORRUPTIONS, range(1, 6))]
    lines = summarise(records).to_text().splitlines()
    assert max(map(len, lines)) <= 200
    heads = [word for line in lines if line.startswith("method") for word in line.split()]
    assert [head for head in heads if head.startswith("gauss")] == [f"gauss{severity}" for severity in range(1, 6)]
    assert len([head for head in heads if head != "method"]) == 75 + 2


def test_written_files_are_whole_and_read_back(tmp_path, values):
    summary = summarise(full_records(values))
    summary.write(tmp_path / "run", ["# Digits", "", "seeds 0 1 2"])
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["summary.json", "summary.md"]
    markdown = (tmp_path / "run" / "summary.md").read_text(encoding="utf-8")
    assert markdown.startswith("# Digits\n\nseeds 0 1 2\n\n## Accuracy (%)\n\n| method |")
    assert summary.table("ece").to_markdown() in markdown and "## n" not in markdown
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["complete"] is True
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write.*summary.md"):
        summary.write(tmp_path / "file")
