"""The look of figures, and their files: SVG in the colour of the page's text, and PNG."""

from __future__ import annotations

import importlib
import io
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tta_cattan.methods import ADAPTATION_REGISTRY, method_title
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import atomic_path, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The colour of text and axes; in SVG, that of the surrounding text.
INK = "#24292f"
# Of medium lightness, to stand out on white and on black; distinct under most colour blindness.
_PALETTE = (
    "#e2543f", "#d36ba6", "#a56ede", "#b5835a", "#c99a12", "#8b949e", "#3f88d8", "#2aa79b",
    "#5aa469", "#6f7fd6", "#9a8f2e", "#4fb0cf", "#c2703d", "#7d8a99",
)  # fmt: skip
MOST_ROWS = len(_PALETTE)  # more cannot be told apart by colour
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
    "font.size": 11,
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


def need(name: str) -> ModuleType:
    """Import a library of the extra ``[report]``, or say how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise UserError(
            f"the report needs {package}, which is not installed: pip install 'tta-cattan[report]'"
        ) from error


def styled() -> Any:
    """Return the context in which figures are drawn and saved."""
    return need("matplotlib").rc_context(_RC)


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour per name: a registered method always has the same, other names take the rest in turn."""
    places = [method_title(name) for name in ADAPTATION_REGISTRY.registered_names()]
    names = list(names)
    places += [name for name in names if name not in places]
    return {name: _PALETTE[places.index(name) % len(_PALETTE)] for name in names}


def label(name: str) -> str:
    """Return a name for a figure: one short line of printable characters."""
    text = "".join(c if c.isprintable() else "?" for c in name)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def to_svg(figure: Figure, name: str) -> str:
    """Return the figure as an ``<svg>`` element for a page; ``name`` makes its ids unique."""
    stream = io.StringIO()
    with styled():
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    # A style inside an SVG element would apply to the whole page.
    text = re.sub(r"<(metadata|style)\b.*?</\1>\s*", "", text, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|href="#)([\w.-]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r'(font(?:-family)?: [^;"]*?)(?:\'[^;"]*|sans-serif)', r"\1system-ui, sans-serif", text)
    return text.replace(INK, "currentColor").strip() + "\n"


def save(figure: Figure, folder: str | os.PathLike[str], name: str) -> str:
    """Write ``name.svg`` and ``name.png`` into ``folder`` and return the ``<svg>`` element."""
    svg = to_svg(figure, name)
    head, end, body = svg.partition(">")
    write_text(Path(folder) / f"{name}.svg", f'<?xml version="1.0" encoding="utf-8"?>\n{head}{end}{_STANDALONE}{body}')
    with styled(), atomic_path(Path(folder) / f"{name}.png") as path:
        figure.savefig(path, format="png", dpi=160, facecolor="white")
    return svg
