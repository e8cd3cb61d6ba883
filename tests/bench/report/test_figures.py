"""Figures show the numbers that they are given, whatever the names are."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
import torch

from tta_cattan import UserError
from tta_cattan.bench.report import figures
from tta_cattan.bench.report.figures import need
from tta_cattan.bench.results.summary import Statistic
from tta_cattan.methods import ADAPTATION_REGISTRY, method_title
from tta_cattan.metrics import reliability_bins

ONE = Statistic(1.0, None, 1)
HOSTILE = "<script>alert('$x_{$')</script>\n\x07"


def text_of(svg: str) -> str:
    """Return all text of an SVG, which must be well-formed XML."""
    return " ".join(ET.fromstring(svg).itertext())


def test_bars_have_the_heights_of_the_numbers_and_gaps_where_there_are_none():
    series = {"TENT": [Statistic(0.1, 0.01, 2), Statistic(0.2, None, 1)], "CATTAn": [Statistic(0.3, None, 1), None]}
    (axes,) = figures.bars(["fog", "snow"], series, "accuracy (%)").axes
    assert sorted(bar.get_height() for bar in axes.patches) == [10, 20, 30]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["fog", "snow"]


def test_lines_have_a_band_of_one_standard_deviation():
    curves = {"TENT": figures.Curve([1, 2], [0.5, 0.6], [0.1, 0.2]), "IP": figures.Curve([1, 2], [0.1, 0.2])}
    (axes,) = figures.lines(curves, "epoch", "accuracy", level={"Source": 0.3}).axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.5, 0.6], [0.1, 0.2], [0.3, 0.3]]
    (band,) = axes.collections
    far = figures.lines(curves, "epoch", "accuracy", level={"Source": 9.0})
    assert len(far.axes[0].lines) == 2 and "Source (9.0)" in [text.get_text() for text in far.legends[0].get_texts()]
    assert set(band.get_paths()[0].vertices[:, 1].round(6)) == {0.4, 0.6, 0.8}


def test_reliability_has_a_bar_per_bin_with_samples_and_the_ece():
    bins = reliability_bins(torch.tensor([0.05, 0.95, 0.95, 0.55]), torch.tensor([0, 1, 0, 1]).bool(), 10)
    figure = figures.reliability({"TENT": bins, "IP": bins})
    for axes in figure.axes:
        assert [bar.get_height() for bar in axes.patches] == [0, 1, 0.5]
        assert f"ECE {bins.calibration_error:.3f}" in axes.get_title()


def test_dimension_leaves_zero_gaps_out_and_marks_d():
    curve = {"d": [1, 2, 5], "source": [3, 0, 1], "target": [2, 1, 1], "bound": [0.1, 0.2, 0.3]}
    (axes,) = figures.dimension(curve, 2, "fog5").axes
    source, target, bound, mark = axes.lines
    assert list(source.get_xdata()) == [1, 5] and list(target.get_ydata()) == [2, 1, 1]
    assert list(bound.get_ydata()) == [0.1, 0.2, 0.3] and list(mark.get_xdata()) == [2, 2]
    del curve["source"]  # a basis of the classifier has no spectrum
    assert len(figures.dimension(curve, 2).axes[0].lines) == 3


def test_a_legend_of_two_lines_is_read_line_by_line():
    names = list("abcdefghi")
    legend = figures.bars(["x"], {name: [ONE] for name in names}, "y").legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["a", "h", "b", "i", *"cdefg"], "column by column"


def test_cost_writes_each_value():
    figure = figures.cost({"ms": {"TENT": 3.0, "IP": 5.0}, "MB": {"IP": 7.0}}, {"ms": "{:.1f}".format, "MB": str})
    assert [[bar.get_width() for bar in axes.patches] for axes in figure.axes] == [[3, 5], [7]]
    assert {"3.0", "5.0", "7.0"} <= set(text_of(figures.to_svg(figure, "cost")).split())


def test_svg_takes_the_colour_of_the_page_and_keeps_to_itself():
    def one(name):
        return figures.to_svg(figures.bars(["a"], {"TENT": [ONE]}, "y"), name)

    first, second = one("first"), one("second")
    assert first.startswith("<svg") and "currentColor" in first and figures.INK not in first
    assert "<style" not in first, "a style would hold for the whole page"
    ids = [set(re.findall(r'id="([^"]*)"', svg)) for svg in (first, second)]
    assert ids[0] and not ids[0] & ids[1]
    assert set(re.findall(r'(?:url\(#|href="#)([^")]*)', first)) == ids[0]
    assert one("first") == first, "the same figure twice is the same text"


def test_hostile_names_are_text():
    svg = figures.to_svg(figures.bars([HOSTILE], {HOSTILE: [ONE], "_hidden": [ONE]}, HOSTILE), "hostile")
    assert "<script" not in svg
    assert "<script>alert('$x_{$')</script>??" in text_of(svg) and "_hidden" in text_of(svg)


def test_save_writes_both_files(tmp_path):
    svg = figures.save(figures.bars(["a"], {"TENT": [ONE]}, "y"), tmp_path, "bars")
    ET.parse(tmp_path / "bars.svg")
    assert "prefers-color-scheme" in (tmp_path / "bars.svg").read_text(encoding="utf-8")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG") and svg.startswith("<svg")


def test_a_method_has_one_colour_in_every_figure():
    assert figures.colours(["TENT", "CATTAn"])["CATTAn"] == figures.colours(["CATTAn", "mine"])["CATTAn"]
    assert len(set(figures.colours(["TENT", "a", "b", "c"]).values())) == 4
    titles = [method_title(name) for name in ADAPTATION_REGISTRY.registered_names()]
    assert len(set(figures.colours([*titles, "mine"]).values())) == len(titles) + 1


def test_a_missing_library_is_named_with_the_remedy():
    with pytest.raises(UserError, match=r"needs no_such_library.*tta-cattan\[report\]"):
        need("no_such_library.part")
