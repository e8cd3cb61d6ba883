"""Draw docs/idea.svg, the idea of CATTAn: ``python docs/site/idea.py [FILE]``."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

Point = tuple[float, float]
Vector = tuple[float, float, float]

_CLASSES = ("#3f88d8", "#e2543f", "#2aa79b")
_CENTRES = ((-0.62, -0.42), (0.66, -0.3), (0.02, 0.62))
_STYLE = """
text { font: 20px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f; }
.small { font-size: 17px; fill: #5c6672; }
.maths { font-style: italic; font-family: Georgia, "Times New Roman", serif; }
.plane { fill: #8b949e; fill-opacity: .13; stroke: #8b949e; } .target { fill: #c99a12; stroke: #c99a12; }
.line { stroke: #24292f; stroke-width: 1.6; fill: none; } .tip { fill: #24292f; }
.border { stroke: #5c6672; stroke-dasharray: 5 4; stroke-width: 1.2; }
@media (prefers-color-scheme: dark) {
  text { fill: #d7dce2; } .small { fill: #98a3b0; } .line { stroke: #d7dce2; } .tip { fill: #d7dce2; }
  .border { stroke: #98a3b0; }
}
"""


def on_screen(v: Vector, origin: Point, scale: float = 92) -> Point:
    """Return where a point in space is drawn: seen from the front, a little from above and from the right."""
    x, y, z = v
    return origin[0] + scale * (x - 0.35 * y), origin[1] - scale * (z + 0.32 * y + 0.08 * x)


def in_plane(a: float, b: float, tilt: float) -> Vector:
    """Return the point with coordinates (a, b) of a plane through the origin, tilted by so many degrees."""
    angle = math.radians(tilt)
    return a, b * math.cos(angle), b * math.sin(angle) + 0.25 * a * math.sin(angle)


def plane(origin: Point, tilt: float, kind: str = "") -> str:
    """Return a square of a tilted plane."""
    corners = [on_screen(in_plane(a, b, tilt), origin) for a, b in ((-1.2, -1), (1.2, -1), (1.2, 1), (-1.2, 1))]
    return f'<polygon class="plane {kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in corners)}"/>'


def clouds(origin: Point, tilt: float, spread: float, known: bool) -> str:
    """Return the features of three classes near a plane: coloured where the class is known or predicted."""
    rng = random.Random(3)
    dots = []
    for colour, (a, b) in zip(_CLASSES, _CENTRES, strict=True):
        for _ in range(16):
            x, y, z = in_plane(a + rng.gauss(0, spread), b + rng.gauss(0, spread), tilt)
            px, py = on_screen((x, y, z + rng.gauss(0, 0.05)), origin)
            dots.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.6" fill="{colour if known else "#8b949e"}"/>')
    return "".join(dots)


def borders(origin: Point, tilt: float) -> str:
    """Return the borders between the classes on a plane."""
    middle = on_screen(in_plane(0.03, -0.06, tilt), origin)
    ends = [on_screen(in_plane(a, b, tilt), origin) for a, b in ((0.04, -1), (1.2, 0.42), (-1.2, 0.5))]
    return "".join(
        f'<line class="border" x1="{middle[0]:.1f}" y1="{middle[1]:.1f}" x2="{x:.1f}" y2="{y:.1f}"/>' for x, y in ends
    )


def arrow(x: float, y: float, above: str, below: str) -> str:
    """Return an arrow to the right with a word above and one below it."""
    return (
        f'<path class="line" d="M{x},{y} h66"/><path class="tip" d="M{x + 78},{y} l-14,-6 v12 z"/>'
        f'<text x="{x + 38}" y="{y - 12}" text-anchor="middle" class="maths">{above}</text>'
        f'<text x="{x + 38}" y="{y + 24}" text-anchor="middle" class="small">{below}</text>'
    )


def caption(x: float, title: str, line: str) -> str:
    """Return the words below a panel."""
    return (
        f'<text x="{x}" y="264" text-anchor="middle">{title}</text>'
        f'<text x="{x}" y="289" text-anchor="middle" class="small">{line}</text>'
    )


def picture() -> str:
    """Return the whole figure."""
    source, target, aligned = (150.0, 140.0), (466.0, 132.0), (812.0, 140.0)
    parts = [
        plane(source, 8), borders(source, 8), clouds(source, 8, 0.15, True),
        plane(target, 44, "target"), clouds(target, 44, 0.17, False),
        plane(aligned, 8), borders(aligned, 8), clouds(aligned, 8, 0.17, True),
        '<text x="30" y="92" class="maths">W<tspan dy="4" font-size="14">s</tspan></text>',
        '<text x="356" y="44" class="maths">W<tspan dy="4" font-size="14">t</tspan></text>',
        '<text x="315" y="150" text-anchor="middle" class="small">shift</text>',
        '<path class="line" stroke-dasharray="2 4" d="M298,162 h34"/>',
        arrow(608, 150, "Φ", "align"),
        caption(150, "Source subspace", "fitted once; ships with the model"),
        caption(468, "Target subspace", "from unlabelled test data"),
        caption(812, "Prediction", "z ↦ z Wₜ Φ Wₛᵀ, same classifier"),
    ]  # fmt: skip
    label = (
        "Source features span one subspace, target features another. CATTAn learns the map between them, and the "
        "source classifier predicts."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 304" role="img" aria-label="{label}">'
        f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "idea.svg"
    path.write_text(picture(), encoding="utf-8")
