"""Matplotlib figures of results, their style, and their files: SVG in the colour of the page's text, and PNG."""

from __future__ import annotations

import importlib
import io
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tta_cattan.bench.results.summary import Statistic
from tta_cattan.methods import ADAPTATION_REGISTRY, method_title
from tta_cattan.metrics import ReliabilityBins
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import atomic_path, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from tta_cattan.bench.report.reading import StreamFacts

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
_WIDTH = 6.6  # inches; on a phone the page scales it down, and the text must stay legible
_CHARACTERS = 78  # per line of a legend
_LEGEND_ROW = 0.25
_LEGEND_COLUMNS = 7


@dataclass(frozen=True)
class Curve:
    """Points of a line, with their standard deviation over seeds if there are several."""

    x: Sequence[float]
    y: Sequence[float]
    std: Sequence[float] | None = None

    @classmethod
    def of(cls, found: Mapping[float, Statistic]) -> Curve:
        """Return fractions as a curve in %, sorted by x; standard deviations need several seeds at every x."""
        x = sorted(found)
        std = [100 * value for place in x if (value := found[place].std) is not None]
        return cls(x, [100 * found[place].mean for place in x], std if len(std) == len(x) else None)

    @property
    def band(self) -> tuple[list[float], list[float]]:
        """The line minus and plus one standard deviation."""
        std = self.std or [0.0] * len(self.y)
        return [y - s for y, s in zip(self.y, std, strict=True)], [y + s for y, s in zip(self.y, std, strict=True)]


def bars(groups: Sequence[str], series: Mapping[str, Sequence[Statistic | None]], ylabel: str) -> Figure:
    """Draw a group of bars per name in ``groups``, with a bar in % per series; None leaves a gap."""
    with styled():
        figure, (axes,) = _figure(height=3.4, legend={name: name for name in series})
        width = 0.84 / max(1, len(series))
        for position, (name, colour) in enumerate(colours(series).items()):
            for group, found in enumerate(series[name]):
                if found is None:
                    continue
                x = group + (position - (len(series) - 1) / 2) * width
                error = None if found.std is None else 100 * found.std
                thin = {"ecolor": INK, "elinewidth": 0.8}
                axes.bar(x, 100 * found.mean, width * 0.92, color=colour, yerr=error, error_kw=thin)
        axes.set_xticks(range(len(groups)), [label(group) for group in groups], rotation=35, ha="right")
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.6, len(groups) - 0.4)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(label(ylabel))
    return figure


def lines(
    curves: Mapping[str, Curve], xlabel: str, ylabel: str, log_x: bool = False, level: Mapping[str, float] | None = None
) -> Figure:
    """Draw a line per curve with a band of one standard deviation, and a dashed one per ``level``.

    Note: a level far from all curves would flatten them; its value is given in the legend instead.
    """
    low = min((y for curve in curves.values() for y in curve.band[0]), default=0.0)
    high = max((y for curve in curves.values() for y in curve.band[1]), default=0.0)
    levels = {name: value for name, value in (level or {}).items() if 2 * low - high <= value <= 2 * high - low}
    far = {name: f"{name} ({value:.1f})" for name, value in (level or {}).items() if name not in levels}
    palette = colours([*curves, *(level or {})])
    legend = {name: far.get(name, name) for name in palette}
    with styled():
        figure, (axes,) = _figure(height=3.2, legend=legend)
        _draw(axes, curves, palette, few=12)
        for name, value in levels.items():
            axes.axhline(value, color=palette[name], linestyle="--", linewidth=1.2)
        if log_x:
            axes.set_xscale("log")
            _plain_ticks(axes.xaxis)
        else:
            axes.xaxis.set_major_locator(need("matplotlib.ticker").MaxNLocator(nbins=10, integer=_whole(curves)))
        axes.set_xlabel(label(xlabel))
        axes.set_ylabel(label(ylabel))
    return figure


def swept(curves: Mapping[str, Curve], key: str, level: Mapping[str, float]) -> Figure:
    """Draw the accuracy against a swept key, on a logarithmic axis if the settings span a factor of 16 or more."""
    every = [x for curve in curves.values() for x in curve.x]
    wide = min(every) > 0 and max(every) >= 16 * min(every)
    return lines(curves, key, "accuracy (%)", log_x=wide, level=level)


def stream(
    curves: Mapping[str, Curve],
    bands: Sequence[tuple[str, float, float]],
    collapses: Mapping[str, Sequence[float]],
    xlabel: str,
    ylabel: str,
) -> Figure:
    """Draw a line per curve over bands (name, first, last) of domains, with a cross where a curve's method collapsed.

    Note: only bands that are wide enough get their name.
    """
    palette = colours(curves)
    with styled():
        figure, (axes,) = _figure(height=3.6, legend={name: name for name in curves})
        whole = max((end for _, _, end in bands), default=0.0)
        for number, (name, start, end) in enumerate(bands):
            if number % 2:
                axes.axvspan(start, end, color=INK, alpha=0.06, linewidth=0)
            if end - start >= whole / 40:
                text = axes.text((start + end) / 2, 0.02, label(name), transform=axes.get_xaxis_transform(), fontsize=7)
                text.set(rotation=90, ha="center", va="bottom", alpha=0.7)
        for name, curve in curves.items():
            _draw(axes, {name: curve}, palette)
            if at := collapses.get(name):
                heights = np.interp(at, curve.x, curve.y)
                axes.plot(at, heights, "X", color=palette[name], markersize=9, markeredgecolor=INK)
        axes.set_xlim(0, whole or None)
        axes.set_xlabel(label(xlabel))
        axes.set_ylabel(label(ylabel))
    return figure


def monitored(streams: Mapping[str, StreamFacts]) -> Figure:
    """Draw, per name, accuracy and its estimate with the interval, and below them the drift and detected changes."""
    palette = colours(streams)
    with styled():
        figure, panels = _figure(4.4, {name: name for name in streams}, rows=2, columns=len(streams))
        for column, (name, facts) in enumerate(streams.items()):
            above, below = panels[column], panels[column + len(streams)]
            seen, estimate, low, high, drift = zip(*facts.readings, strict=True)
            x, y = zip(*facts.windows, strict=True)
            above.plot(x, [100 * value for value in y], color=palette[name], linewidth=1.4)
            above.plot(seen, [100 * value for value in estimate], color=INK, linestyle="--", linewidth=1.2)
            band = ([100 * value for value in low], [100 * value for value in high])
            above.fill_between(seen, *band, color=INK, alpha=0.12, linewidth=0)
            below.plot(seen, drift, color=palette[name], linewidth=1.4)
            for change in facts.changes:
                below.axvline(change, color=INK, linewidth=0.7, alpha=0.6)
            below.set_xlim(*above.get_xlim())
            below.set_xlabel("images seen")
        panels[0].set_ylabel("accuracy (%)")
        panels[len(streams)].set_ylabel("drift")
    return figure


def reliability(bins: Mapping[str, ReliabilityBins]) -> Figure:
    """Draw a reliability diagram per name: accuracy per confidence bin, its gap to the mean confidence, and the ECE.

    Note: the opacity of a bar grows with the samples in its bin.
    """
    across = min(4, len(bins))
    down = math.ceil(len(bins) / across)
    with styled():
        figure, panels = _figure(height=0.2 + 2.1 * down, rows=down, columns=across)
        for axes, (name, colour) in zip(panels, colours(bins).items(), strict=False):
            found = bins[name]
            width, most = 1 / len(found.count), max(found.count)
            for place, (count, sure, right) in enumerate(
                zip(found.count, found.confidence, found.correct, strict=True)
            ):
                if count:
                    accuracy, confidence = right / count, sure / count
                    alpha = 0.15 + 0.85 * math.sqrt(count / most)
                    axes.bar((place + 0.5) * width, accuracy, width * 0.9, color=colour, alpha=alpha)
                    axes.plot([(place + 0.5) * width] * 2, [accuracy, confidence], color=INK, linewidth=1)
            axes.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=1)
            axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
            axes.set_title(f"{label(name)}\nECE {found.calibration_error:.3f}", fontsize=9)
        for axes in panels[len(bins) :]:
            axes.set_visible(False)
        figure.supxlabel("confidence", fontsize=10)
        figure.supylabel("accuracy", fontsize=10)
    return figure


def dimension(curve: Mapping[str, Sequence[float]], chosen: int, title: str = "") -> Figure:
    """Draw ``subspace.stability_curve``: the eigenvalue gaps and the bound against d, and the chosen d.

    Note: the axis is logarithmic, so gaps of 0 are left out.
    """
    named = {"source": ("source gaps", "#3f88d8"), "target": ("target gaps", "#e2543f"), "bound": ("bound", INK)}
    with styled():
        figure, (axes,) = _figure(height=3.2)
        for key, (name, colour) in named.items():
            points = [(d, value) for d, value in zip(curve["d"], curve.get(key, ()), strict=False) if value > 0]
            if points:
                style = "--" if key == "bound" else "-"
                axes.plot(*zip(*points, strict=True), style, color=colour, linewidth=1.4, label=name)
        axes.axvline(chosen, color=INK, linestyle=":", linewidth=1.2, label=f"d = {chosen}")
        axes.set(yscale="log", xlabel=label(f"d ({title})" if title else "d"), ylabel="gap  e(d) − e(d+1)")
        axes.xaxis.set_major_locator(need("matplotlib.ticker").MaxNLocator(integer=True))
        _plain_ticks(axes.yaxis)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)
    return figure


def cost(measures: Mapping[str, Mapping[str, float]], show: Mapping[str, Callable[[float], str]]) -> Figure:
    """Draw a panel of horizontal bars per measure, ``measures[measure][name]``, with values formatted by ``show``."""
    names = list(dict.fromkeys(name for values in measures.values() for name in values))
    palette = colours(names)
    with styled():
        figure, panels = _figure(height=0.7 + 0.28 * len(names), columns=len(measures), sharey=True)
        for axes, (measure, values) in zip(panels, measures.items(), strict=True):
            for row, name in enumerate(names):
                if name in values:
                    axes.barh(row, values[name], 0.7, color=palette[name])
                    axes.annotate(
                        show[measure](values[name]),
                        (max(values[name], 0), row),
                        (4, 0),
                        textcoords="offset points",
                        va="center",
                        fontsize=8.5,
                    )
            axes.set_title(label(measure), loc="left", fontsize=10)
            axes.set_yticks(range(len(names)), [label(name) for name in names])
            axes.tick_params(length=0)
            axes.set_xticks([])
            axes.grid(visible=False)
            axes.spines["bottom"].set_visible(False)
            axes.margins(x=0.9)  # room for the values
        panels[0].invert_yaxis()  # shared
    return figure


def _figure(
    height: float,
    legend: Mapping[str, str] | None = None,
    rows: int = 1,
    columns: int = 1,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, with a legend of coloured squares above them: name -> text."""
    longest = max((len(label(text)) for text in (legend or {}).values()), default=0)
    across = max(1, min(_LEGEND_COLUMNS, len(legend or {}), _CHARACTERS // (longest + 5)))
    height += _LEGEND_ROW * math.ceil(len(legend or {}) / across)
    # Not pyplot, which keeps every figure until it is closed and may need a display.
    figure = need("matplotlib.figure").Figure(figsize=(_WIDTH, height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=sharey).ravel().tolist()
    if legend:
        patch = need("matplotlib.patches").Patch
        entries = [(patch(color=colour), label(legend[name])) for name, colour in colours(legend).items()]
        # matplotlib fills column by column; people read line by line.
        handles, texts = zip(*(entry for start in range(across) for entry in entries[start::across]), strict=True)
        spacing = {"handlelength": 0.9, "handleheight": 0.9, "columnspacing": 1.4}
        figure.legend(handles, texts, loc="outside upper left", ncols=across, **spacing)
    return figure, panels


def _draw(axes: Axes, curves: Mapping[str, Curve], palette: Mapping[str, str], few: int = 0) -> None:
    """Draw a line per curve, with its points if they are ``few``, and the band of its standard deviation."""
    for name, curve in curves.items():
        marker = "o" if len(curve.x) <= few else ""
        axes.plot(curve.x, curve.y, color=palette[name], marker=marker, markersize=4, linewidth=1.5)
        if curve.std is not None:
            axes.fill_between(curve.x, *curve.band, color=palette[name], alpha=0.18, linewidth=0)


def _plain_ticks(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers instead of powers."""
    ticker = need("matplotlib.ticker")
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def _whole(curves: Mapping[str, Curve]) -> bool:
    """Return whether all x are whole numbers."""
    return all(float(x).is_integer() for curve in curves.values() for x in curve.x)


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
