"""How figures look, and how they are written: SVG that takes the colour of the page's text, and PNG."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_cattan.bench.report.extra import need
from tta_cattan.util.files import atomic_path, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The colour of text and axes; in SVG it becomes the colour of the text around the figure.
INK = "#24292f"
# Of middling lightness, so that they stand out on white and on black; told apart with most colour blindness.
_METHOD_COLOURS = {
    "Source": "#8b949e",
    "Norm": "#b5835a",
    "TENT": "#3f88d8",
    "TENT+": "#2aa79b",
    "SHOT": "#c99a12",
    "IP": "#a56ede",
    "CATTAn": "#e2543f",
    "CATTAn+": "#d36ba6",
}
_OTHER_COLOURS = ("#5aa469", "#6f7fd6", "#9a8f2e", "#4fb0cf", "#c2703d", "#7d8a99")
_LONGEST = 40
_RC: Mapping[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "font.family": "sans-serif",
    "font.size": 10,
    "grid.alpha": 0.15,
    "grid.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "tta-cattan",  # ids that do not change from run to run
    "text.color": INK,
    "text.parse_math": False,  # a "$" in a name is a dollar
    "xtick.color": INK,
    "ytick.color": INK,
}
_STANDALONE = f"<style>svg{{color:{INK}}}@media(prefers-color-scheme:dark){{svg{{color:#d7dce2}}}}</style>"


def styled() -> Any:
    """Return the context in which figures are made and written."""
    return need("matplotlib").rc_context(_RC)


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour per name: a method has the same one in every figure; the others take what is left in turn."""
    chosen: dict[str, str] = {}
    for name in names:
        own = _METHOD_COLOURS.get(name)
        chosen[name] = own or _OTHER_COLOURS[sum(n not in _METHOD_COLOURS for n in chosen) % len(_OTHER_COLOURS)]
    return chosen


def label(name: str) -> str:
    """Return a name as it can stand in a figure: one short line of printable characters."""
    text = "".join(c if c.isprintable() else "?" for c in name)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def to_svg(figure: Figure, name: str) -> str:
    """Return the figure as an ``<svg>`` element for a page; ``name`` keeps its ids apart from other figures'."""
    stream = io.StringIO()
    with styled():
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    # A style inside an SVG element would hold for the whole page.
    text = re.sub(r"<(metadata|style)\b.*?</\1>\s*", "", text, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|href="#)([\w.-]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r'(font(?:-family)?: [^;"]*?)(?:\'[^;"]*|sans-serif)', r"\1system-ui, sans-serif", text)
    return text.replace(INK, "currentColor").strip() + "\n"


def save(figure: Figure, folder: str | os.PathLike[str], name: str) -> str:
    """Write ``name.svg`` and ``name.png`` into ``folder`` and return the SVG as a page takes it."""
    svg = to_svg(figure, name)
    head, end, body = svg.partition(">")
    write_text(Path(folder) / f"{name}.svg", f'<?xml version="1.0" encoding="utf-8"?>\n{head}{end}{_STANDALONE}{body}')
    with styled(), atomic_path(Path(folder) / f"{name}.png") as path:
        figure.savefig(path, format="png", dpi=160, facecolor="white")
    return svg
