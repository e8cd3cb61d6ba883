"""The page in a real browser: no error, every figure drawn, the table sorts, a phone is wide enough."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

BROWSER = Path(__file__).with_name("browser.py")
FIGURES = """[...document.querySelectorAll("figure svg")].map(svg => {
  const box = svg.getBoundingClientRect();
  const drawn = [...svg.querySelectorAll("path, use, text")].filter(e => e.getBoundingClientRect().width > 0);
  return [box.width, box.height, drawn.length];
})"""
WIDTHS = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"


def column(number: int) -> str:
    return f'[...document.querySelector("table.sortable").tBodies[0].rows].map(r => r.cells[{number}].dataset.value)'


def click(number: int) -> str:
    return f'document.querySelectorAll("table.sortable thead button")[{number}].click()'


def browse(page: Path, width: int, theme: str = "light", **expressions: str) -> dict:
    """Open the page and return what the expressions are worth; skip where there is no browser."""
    if find_spec("PySide6") is None or find_spec("PySide6.QtWebEngineWidgets") is None:
        pytest.skip("PySide6, whose Chromium opens the page, is not installed (extra [test])")
    done = subprocess.run(
        [sys.executable, str(BROWSER), str(page), str(width), theme],
        input=json.dumps(expressions),
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode and "ImportError" in done.stderr:
        pytest.skip(f"the browser lacks a library of the system: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_desktop_browser_shows_and_sorts(page):
    found = browse(
        page,
        1200,
        figures=FIGURES,
        before=column(1),
        first=f"({click(1)}, {column(1)})",
        second=f"({click(1)}, {column(1)})",
        names=f"({click(0)}, {column(0)})",
        arrow='document.querySelector("table.sortable th[aria-sort]").textContent',
    )
    assert found["loaded"] and found["console"] == []
    assert len(found["figures"]) == 5
    for width, height, drawn in found["figures"]:
        assert width > 300 and height > 100 and drawn > 20
    numbers = [float(value) for value in found["before"]]
    assert [float(value) for value in found["first"]] == sorted(numbers, reverse=True)
    assert [float(value) for value in found["second"]] == sorted(numbers)
    assert found["names"] == sorted(found["names"]) == ["CATTAn", "Norm", "Source", "TENT"]
    assert found["arrow"] == "method"


@pytest.mark.parametrize(("theme", "dark"), [("light", False), ("dark", True)])
def test_a_phone_shows_it_in_both_themes(page, theme, dark):
    found = browse(
        page,
        390,
        theme,
        widths=WIDTHS,
        figures=FIGURES,
        paper="getComputedStyle(document.body).backgroundColor",
        ink='getComputedStyle(document.querySelector("figure svg text")).fill',
    )
    assert found["loaded"] and found["console"] == []
    scrolled, shown = found["widths"]
    assert scrolled <= shown <= 390, "nothing is wider than the phone"
    assert all(drawn > 20 for _, _, drawn in found["figures"])
    lightness = {name: sum(map(int, found[name][4:-1].split(","))) / 3 for name in ("paper", "ink")}
    assert (lightness["paper"] < 60) == dark and (lightness["ink"] > 180) == dark, "text of figures follows the theme"
