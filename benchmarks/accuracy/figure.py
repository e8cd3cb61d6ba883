"""The figure of a grid: accuracy against cost per image, one point per method and column."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.accuracy.grid import Entry
from tta_cattan.bench.report.figures import colours, need, save, styled
from tta_cattan.methods import method_title

MARKERS = {"nothing": "o", "blend": "s", "mirror": "^", "both": "D", "classes": "v", "all": "*"}


def draw(found: Mapping[tuple[str, str], Entry], folder: Path, name: str) -> None:
    """Write a grid as ``name.svg`` and ``name.png``: the colour is the method, the marker the column."""
    palette = colours(dict.fromkeys(method_title(method) for method, _ in found))
    line = need("matplotlib.lines").Line2D
    with styled():
        figure = need("matplotlib.figure").Figure(figsize=(7.5, 4), layout="constrained")
        axes = figure.subplots()
        for (method, column), entry in found.items():
            colour = palette[method_title(method)]
            axes.plot(1000 * entry.cost, entry.mean, MARKERS[column], color=colour, markersize=8, alpha=0.9)
        columns = dict.fromkeys(column for _, column in found)
        signs = [line([], [], marker=MARKERS[c], color="grey", linestyle="", label=c) for c in columns]
        signs += [line([], [], marker="o", color=c, linestyle="", label=title) for title, c in palette.items()]
        axes.legend(handles=signs, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        axes.set(xlabel="ms per image, one core", ylabel="accuracy (%)")
    save(figure, folder, name)
