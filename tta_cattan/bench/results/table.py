"""A table of numbers and text, as Markdown, CSV, LaTeX and plain text."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

MISSING = "-"
_WIDTH = 200  # characters of a terminal's line
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
    """A table's cell: its text, the mean and standard deviation behind it, and the mark ``best`` or ``second``."""

    text: str
    value: float | None = None
    std: float | None = None
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """Column heads and rows of entries, the first of which names the row; ``name`` is used for its files."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    caption: str = ""
    title: str = ""
    name: str = ""

    def to_markdown(self) -> str:
        """Return the table for GitHub, the best bold and the second best underlined."""
        heads = [_markdown(head) for head in self.heads]
        rule = ["---"] + ["---:"] * (len(heads) - 1)
        rows = [[_MARKDOWN[entry.mark].format(_markdown(entry.text)) for entry in row] for row in self.rows]
        return "".join(f"| {' | '.join(row)} |\n" for row in (heads, rule, *rows))

    def to_csv(self, exact: bool = False) -> str:
        """Return the table as shown, or with ``exact`` in full precision and a column for each standard deviation."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not exact:
            writer.writerows([self.heads, *([entry.text for entry in row] for row in self.rows)])
            return text.getvalue()
        spread = [any(entry.std is not None for entry in column) for column in zip(*self.rows, strict=True)]
        heads = [[head, f"{head} std"] if has else [head] for head, has in zip(self.heads, spread, strict=True)]
        writer.writerow([head for part in heads for head in part])
        for name, *entries in self.rows:
            values = [
                [_exact(one), one.std] if has else [_exact(one)] for one, has in zip(entries, spread[1:], strict=True)
            ]
            writer.writerow([name.text, *(value for part in values for value in part)])
        return text.getvalue()

    def to_latex(self) -> str:
        """Return a ``tabular`` for the package booktabs, the best bold and the second best underlined."""
        rows = [" & ".join(_LATEX[entry.mark].format(_latex(entry.text)) for entry in row) for row in self.rows]
        body = " \\\\\n".join(rows)
        heads = " & ".join(_latex(head) for head in self.heads)
        columns = "l" + "r" * (len(self.heads) - 1)
        return (
            f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{heads} \\\\\n\\midrule\n{body} \\\\\n"
            "\\bottomrule\n\\end{tabular}\n"
        )

    def to_text(self) -> str:
        """Return an aligned table for the terminal; one that is too wide is split, repeating the first column."""
        rows = [self.heads, *([entry.text for entry in row] for row in self.rows)]
        return "\n\n".join("\n".join(_align(block)) for block in _blocks(list(zip(*rows, strict=True))))


def number(value: float | None, std: float | None = None, sign: str = "") -> Entry:
    """Return ``12.3 ± 0.2``; ``sign="+"`` shows the sign of positive numbers too."""
    if value is None:
        return Entry(MISSING)
    text = f"{value:{sign}.1f}" + ("" if std is None else f" ± {std:.1f}")
    return Entry(text, value, std)


def mark_best(
    column: Sequence[Entry], best: Callable[[Sequence[float]], float], show: Callable[[float], str]
) -> list[Entry]:
    """Mark the best entries of a column, and the second best if a single one of three or more is the best.

    Note: entries that look alike share a mark, since no reader could tell them apart.
    """
    values = [entry.value for entry in column if entry.value is not None]
    if not values:
        return list(column)
    first = show(best(values))
    rest = [value for value in values if show(value) != first]
    second = show(best(rest)) if len(rest) == len(values) - 1 > 1 else None
    marks = {first: "best", second: "second"}
    return [entry if entry.value is None else replace(entry, mark=marks.get(show(entry.value), "")) for entry in column]


def number_range(numbers: Iterable[int]) -> str:
    """Return ``1,000``, or ``1,000 to 2,000`` if the numbers differ."""
    ordered = sorted(numbers)
    low, high = ordered[0], ordered[-1]
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _markdown(text: str) -> str:
    """Escape what would end a cell or a row, or start an HTML tag."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _latex(text: str) -> str:
    return "".join(_LATEX_SIGNS.get(sign, sign) for sign in " ".join(text.split()))


def _exact(entry: Entry) -> float | str | None:
    return entry.text if entry.value is None and entry.text != MISSING else entry.value


def _blocks(columns: Sequence[Sequence[str]]) -> Iterator[list[Sequence[str]]]:
    """Split the columns into blocks that fit the terminal, each starting with the first column."""
    first, *rest = columns
    block, width = [first], _column_width(first)
    for column in rest:
        if len(block) > 1 and width + 2 + _column_width(column) > _WIDTH:
            yield block
            block, width = [first], _column_width(first)
        block.append(column)
        width += 2 + _column_width(column)
    yield block


def _align(columns: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: names to the left, numbers to the right."""
    first, *rest = columns
    padded = [[cell.ljust(_column_width(first)) for cell in first]]
    padded += [[cell.rjust(_column_width(column)) for cell in column] for column in rest]
    return ["  ".join(row) for row in zip(*padded, strict=True)]


def _column_width(column: Sequence[str]) -> int:
    return max(map(len, column))
