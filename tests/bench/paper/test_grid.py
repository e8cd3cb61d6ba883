"""Tables of numbers: what is shown, and what is kept in full."""

from __future__ import annotations

import csv
import io

from tta_cattan.bench.paper.grid import Difference, Grid, Spread

GRID = Grid(
    "caption",
    ("method", "gauss", "avg"),
    (("TENT", Spread(12.345, 0.25), 3.0), ("", 11.0, Difference(-1.345)), ("x|y", None, Difference(2.0))),
)


def test_markdown_has_signs_spreads_and_gaps():
    lines = GRID.to_markdown().splitlines()
    assert lines[0] == "caption" and lines[2].startswith("| method |")
    assert "12.3 ± 0.2" in lines[4] and "3.0" in lines[4]
    assert "| -1.3 |" in lines[5] and "+2.0" in lines[6] and "x\\|y" in lines[6] and "| - |" in lines[6]


def test_text_is_aligned():
    lines = GRID.to_text().splitlines()[1:]
    assert len({len(line) for line in lines}) == 1


def test_csv_keeps_full_precision_and_the_spread_apart():
    rows = list(csv.reader(io.StringIO(GRID.to_csv())))
    assert rows[0] == ["method", "gauss", "gauss std", "avg"]
    assert rows[1] == ["TENT", "12.345", "0.25", "3.0"]
    assert rows[2] == ["", "11.0", "", "-1.345"] and rows[3] == ["x|y", "", "", "2.0"]
