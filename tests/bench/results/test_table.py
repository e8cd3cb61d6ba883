"""Tables in every format show the same cells and cannot be broken by names."""

from __future__ import annotations

import csv
import io

from tta_cattan.bench.results.table import Entry, Table, mark_best, number, number_range

TABLE = Table(
    ["method", "50 % & more", "avg"],
    [
        [Entry("a_b|c"), Entry("1.0 ± 0.2", 1.0, 0.2, "best"), Entry("-")],
        [Entry("<b>\nx\\y$"), Entry("0.5", 0.5, mark="second"), Entry("0.1", 0.1)],
    ],
)


def marks(values, best=max, show="{:.1f}".format):
    return [entry.mark for entry in mark_best([Entry("", value) for value in values], best, show)]


def test_the_best_and_the_second_best_are_marked():
    assert marks([0.3, 0.9, 0.5, None]) == ["", "best", "second", ""]
    assert marks([0.3, 0.9, 0.5], min) == ["best", "", "second"]
    assert marks([0.51, 0.52, 0.1]) == ["best", "best", ""], "what looks alike shares the mark, and there is no second"
    assert marks([0.9, 0.51, 0.52]) == ["best", "second", "second"]
    assert marks([0.9, 0.5]) == ["best", ""], "the second of two is the last"
    assert marks([None, None]) == ["", ""]


def test_markdown():
    assert TABLE.to_markdown().splitlines() == [
        "| method | 50 % & more | avg |",
        "| --- | ---: | ---: |",
        r"| a_b\|c | **1.0 ± 0.2** | - |",
        "| &lt;b> x\\y$ | <u>0.5</u> | 0.1 |",
    ]


def test_csv_is_read_back():
    rows = list(csv.reader(io.StringIO(TABLE.to_csv())))
    assert rows == [list(TABLE.heads), *([entry.text for entry in row] for row in TABLE.rows)]


def test_latex():
    assert TABLE.to_latex().splitlines() == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"method & 50 \% \& more & avg \\",
        r"\midrule",
        r"a\_b|c & \textbf{1.0 $\pm$ 0.2} & - \\",
        r"<b> x\textbackslash{}y\$ & \underline{0.5} & 0.1 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


NUMBERS = Table(
    ["method", "gauss", "avg"],
    [
        [Entry("TENT"), number(12.345, 0.25), number(3.0)],
        [Entry(""), number(11.0), number(-1.345, sign="+")],
        [Entry("x|y"), number(None), number(2.0, sign="+")],
    ],
)


def test_numbers_have_signs_spreads_and_gaps():
    lines = NUMBERS.to_markdown().splitlines()
    assert lines[0].startswith("| method |")
    assert "12.3 ± 0.2" in lines[2] and "3.0" in lines[2]
    assert "| -1.3 |" in lines[3] and "+2.0" in lines[4] and "x\\|y" in lines[4] and "| - |" in lines[4]


def test_text_is_aligned():
    lines = NUMBERS.to_text().splitlines()
    assert len(lines) == 4 and len({len(line) for line in lines}) == 1


def test_exact_csv_keeps_full_precision_and_the_spread_apart():
    rows = list(csv.reader(io.StringIO(NUMBERS.to_csv(exact=True))))
    assert rows[0] == ["method", "gauss", "gauss std", "avg"]
    assert rows[1] == ["TENT", "12.345", "0.25", "3.0"]
    assert rows[2] == ["", "11.0", "", "-1.345"] and rows[3] == ["x|y", "", "", "2.0"]


def test_a_range_of_equal_numbers_is_one_number():
    assert number_range([2000, 1000, 1500]) == "1,000 to 2,000" and number_range([64, 64]) == "64"
