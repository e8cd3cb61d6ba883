"""What a study comes to: notes, tables and figures; and the files it is written to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, overload

from tta_cattan.bench.paper.grid import Grid, Spread
from tta_cattan.bench.report.style import save
from tta_cattan.bench.results.summary import Statistic
from tta_cattan.util.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Presentation:
    """The tables and figures of a study (figures by the end of their file's name), and lines below the tables."""

    grids: tuple[Grid, ...]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    findings: tuple[str, ...] = ()


@overload
def percent(found: Statistic) -> Spread: ...
@overload
def percent(found: Statistic | None) -> Spread | None: ...
def percent(found: Statistic | None) -> Spread | None:
    """Return a fraction's mean and standard deviation in %."""
    if found is None:
        return None
    return Spread(100 * found.mean, None if found.std is None else 100 * found.std)


def to_markdown(title: str, notes: list[str], shown: Presentation, name: str) -> str:
    """Return the whole study as one Markdown page that shows the figures beside it."""
    parts = [f"# {title}", "\n".join(f"- {note}" for note in notes)]
    parts += [grid.to_markdown().rstrip() for grid in shown.grids]
    parts += ["\n".join(f"- {finding}" for finding in shown.findings)]
    parts += [f"![{title}]({name}{suffix}.svg)" for suffix in shown.figures]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_text(title: str, notes: list[str], shown: Presentation) -> str:
    """Return the whole study for the terminal."""
    blocks = ["\n".join([title, *notes]), *(grid.to_text() for grid in shown.grids), "\n".join(shown.findings)]
    return "\n\n".join(block for block in blocks if block)


def write(folder: Path, name: str, title: str, notes: list[str], shown: Presentation) -> list[Path]:
    """Write ``name.md``, a CSV per table and the figures as SVG and PNG; return the files."""
    texts = {f"{name}.md": to_markdown(title, notes, shown, name)}
    for number, grid in enumerate(shown.grids, start=1):
        texts[f"{name}.csv" if number == 1 else f"{name}-{number}.csv"] = grid.to_csv()
    for file, text in texts.items():
        write_text(folder / file, text)
    for suffix, figure in shown.figures.items():
        save(figure, folder, f"{name}{suffix}")
    return [folder / file for file in texts] + [
        folder / f"{name}{suffix}.{kind}" for suffix in shown.figures for kind in ("svg", "png")
    ]
