"""The page: everything in one HTML file, and the same tables and figures as files."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tta_cattan import __version__
from tta_cattan.bench.report.comparison import Comparison, group_runs
from tta_cattan.bench.report.extra import need
from tta_cattan.bench.report.pairs import Pair, compare_all
from tta_cattan.bench.report.plots import plots_of
from tta_cattan.bench.report.reading import find_runs
from tta_cattan.bench.report.style import save
from tta_cattan.bench.report.tables import tables_of
from tta_cattan.bench.report.words import about, facts, verdict
from tta_cattan.bench.results.layout import to_csv, to_latex, to_markdown
from tta_cattan.util.files import write_text

PAGE_FILE = "report.html"
_HERE = Path(__file__).parent
_WRITERS = {"md": to_markdown, "csv": to_csv, "tex": to_latex}


def write_report(paths: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Write the report of the runs in ``paths`` into the folder ``out`` and return the page's path."""
    jinja = need("jinja2")
    need("matplotlib")
    comparisons = group_runs(find_runs(paths))
    # Names come from files that others may have written: all that is not marked safe is escaped.
    environment = jinja.Environment(
        loader=jinja.FileSystemLoader(_HERE), autoescape=True, undefined=jinja.StrictUndefined, trim_blocks=True
    )
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    page = environment.get_template("page.html").render(
        comparisons=[_section(one, name, Path(out)) for name, one in _file_names(comparisons).items()],
        style=(_HERE / "page.css").read_text(encoding="utf-8"),
        script=script,
        # The page's policy: this script alone runs, whatever else should get into the page.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
        created=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    )
    path = Path(out) / PAGE_FILE
    write_text(path, page)
    return path


def _file_names(comparisons: Iterable[Comparison]) -> dict[str, Comparison]:
    """Return the comparisons by the beginning of their files' names, which is also their place on the page."""
    named: dict[str, Comparison] = {}
    for comparison in comparisons:
        name = re.sub(r"[^A-Za-z0-9]+", "-", comparison.title).strip("-")[:60] or "run"
        named[name if name not in named else f"{name}-{len(named) + 1}"] = comparison
    return named


def _section(comparison: Comparison, prefix: str, out: Path) -> dict[str, Any]:
    """Write a comparison's tables and figures to files, and return what the template shows of it."""
    names, pairs = list(comparison.variants), compare_all(comparison)
    tables, plots = tables_of(comparison, pairs), plots_of(comparison)
    for shown in tables.values():
        for suffix, writer in _WRITERS.items():
            write_text(out / "tables" / f"{prefix}-{shown.name}.{suffix}", writer(shown.table))
    return {
        "id": prefix,
        "title": comparison.title,
        "facts": facts(comparison),
        "verdict": verdict(comparison, pairs),
        "tables": tables,
        "outcomes": [[_outcome(pairs.get((first, second))) for second in names] for first in names],
        "figures": [(plot, save(plot.figure, out / "figures", f"{prefix}-{plot.name}")) for plot in plots],
        "runs": [about(run) for run in comparison.runs],
        "configs": {
            name: yaml.safe_dump(dict(variant.config), sort_keys=False, allow_unicode=True)
            for name, variant in comparison.variants.items()
            if variant.config
        },
    }


def _outcome(pair: Pair | None) -> str:
    """Return how a cell of the matrix of differences is coloured."""
    if pair is None or not pair.difference.decided:
        return "open"
    return "won" if pair.difference.mean > 0 else "lost"
