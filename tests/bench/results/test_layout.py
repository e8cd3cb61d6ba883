"""Tables in every format show the same cells and cannot be broken by names."""

from __future__ import annotations

import csv
import io

from tta_cattan.bench.results.layout import Entry, Table, mark_best, to_csv, to_latex, to_markdown

TABLE = Table(
    ["method", "50 % & more", "avg"],
    [
        [Entry("a_b|c"), Entry("1.0 ± 0.2", 1.0, "best"), Entry("-")],
        [Entry("<b>\nx\\y$"), Entry("0.5", 0.5, "second"), Entry("0.1", 0.1)],
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
    assert to_markdown(TABLE).splitlines() == [
        "| method | 50 % & more | avg |",
        "| --- | ---: | ---: |",
        r"| a_b\|c | **1.0 ± 0.2** | - |",
        "| &lt;b> x\\y$ | <u>0.5</u> | 0.1 |",
    ]


def test_csv_is_read_back():
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))
    assert rows == [list(TABLE.heads), *([entry.text for entry in row] for row in TABLE.rows)]


def test_latex():
    assert to_latex(TABLE).splitlines() == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"method & 50 \% \& more & avg \\",
        r"\midrule",
        r"a\_b|c & \textbf{1.0 $\pm$ 0.2} & - \\",
        r"<b> x\textbackslash{}y\$ & \underline{0.5} & 0.1 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
