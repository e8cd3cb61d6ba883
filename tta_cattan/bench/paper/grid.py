"""A table of numbers and words, as Markdown, CSV and plain text."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from tta_cattan.bench.results import layout
from tta_cattan.bench.results.tables import aligned_text

Value = str | float | None


class Difference(float):
    """A number that is shown with its sign."""


@dataclass(frozen=True)
class Spread:
    """A mean and its standard deviation over seeds (None for one seed)."""

    mean: float
    std: float | None


Row = tuple[Value | Spread, ...]


@dataclass(frozen=True)
class Grid:
    """A caption, the heads of the columns, and rows of values as long; ``digits`` are those after the point."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    digits: int = 1

    def to_markdown(self) -> str:
        """Return the caption and the table."""
        rows = [[layout.Entry(text) for text in row] for row in self._shown()]
        return f"{self.caption}\n\n{layout.to_markdown(layout.Table(self.heads, rows))}"

    def to_text(self) -> str:
        """Return an aligned table for the terminal under its caption."""
        columns = [list(column) for column in zip(self.heads, *self._shown(), strict=True)]
        return f"{self.caption}\n{aligned_text(columns)}"

    def to_csv(self) -> str:
        """Return the values in full precision; a standard deviation has a column of its own."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        spread = [any(isinstance(row[place], Spread) for row in self.rows) for place in range(len(self.heads))]
        heads = zip(self.heads, spread, strict=True)
        writer.writerow(_flat([[head, f"{head} std"] if has else [head] for head, has in heads]))
        for row in self.rows:
            writer.writerow(_flat([_csv_cells(value, has) for value, has in zip(row, spread, strict=True)]))
        return text.getvalue()

    def _shown(self) -> list[list[str]]:
        return [[self._show(value) for value in row] for row in self.rows]

    def _show(self, value: Value | Spread) -> str:
        if value is None:
            return "-"
        if isinstance(value, Spread):
            std = "" if value.std is None else f" ± {value.std:.{self.digits}f}"
            return f"{value.mean:.{self.digits}f}{std}"
        if isinstance(value, str):
            return value
        return f"{value:{'+' if isinstance(value, Difference) else ''}.{self.digits}f}"


def _csv_cells(value: Value | Spread, has_spread: bool) -> list[Value]:
    if isinstance(value, Spread):
        return [value.mean, value.std]
    return [value, None] if has_spread else [value]


def _flat(parts: Sequence[Sequence[Value]]) -> list[Value]:
    return [value for part in parts for value in part]
