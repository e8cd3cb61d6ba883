"""A table with its best cells marked, as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

_MARKDOWN = {"": "{}", "best": "**{}**", "second": "<u>{}</u>"}
_LATEX = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
_LATEX_SIGNS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "…": r"\ldots{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


@dataclass(frozen=True)
class Entry:
    """What a cell shows, the number behind it (to sort by), and whether it is the ``best`` or ``second`` best."""

    text: str
    value: float | None = None
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """Column heads and rows of as many entries, of which the first is the row's name."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Entry]]


def mark_best(
    column: Sequence[Entry], best: Callable[[Sequence[float]], float], show: Callable[[float], str]
) -> list[Entry]:
    """Mark the best entries of a column, and the second best where one is best of three or more.

    Note: all that look as good as the best are marked, as no reader could tell them apart.
    """
    values = [entry.value for entry in column if entry.value is not None]
    if not values:
        return list(column)
    first = show(best(values))
    rest = [value for value in values if show(value) != first]
    second = show(best(rest)) if len(rest) == len(values) - 1 > 1 else None
    marks = {first: "best", second: "second"}
    return [entry if entry.value is None else replace(entry, mark=marks.get(show(entry.value), "")) for entry in column]


def to_markdown(table: Table) -> str:
    """Return the table for GitHub; the best bold, the second best underlined."""
    heads = [_markdown(head) for head in table.heads]
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    rows = [[_MARKDOWN[entry.mark].format(_markdown(entry.text)) for entry in row] for row in table.rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in (heads, rule, *rows))


def to_csv(table: Table) -> str:
    """Return the table as shown, unmarked."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.heads, *([e.text for e in row] for row in table.rows)])
    return text.getvalue()


def to_latex(table: Table) -> str:
    """Return a ``tabular`` for the package booktabs; the best bold, the second best underlined."""
    rows = [" & ".join(_LATEX[entry.mark].format(_latex(entry.text)) for entry in row) for row in table.rows]
    body = " \\\\\n".join(rows)
    heads = " & ".join(_latex(head) for head in table.heads)
    columns = "l" + "r" * (len(table.heads) - 1)
    return (
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{heads} \\\\\n\\midrule\n{body} \\\\\n"
        "\\bottomrule\n\\end{tabular}\n"
    )


def _markdown(text: str) -> str:
    """Return ``text`` so that it can neither end a table's cell or row nor be taken for HTML."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _latex(text: str) -> str:
    """Return ``text`` with the signs that LaTeX reads as commands written out."""
    return "".join(_LATEX_SIGNS.get(sign, sign) for sign in " ".join(text.split()))
