"""The report page: one self-contained HTML file, with its tables and figures also as separate files."""

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
from tta_cattan.bench.report.figures import need, save
from tta_cattan.bench.report.pairs import Differences, compare_all
from tta_cattan.bench.report.plots import plots_of
from tta_cattan.bench.report.reading import Run, find_runs
from tta_cattan.bench.report.tables import plural, tables_of
from tta_cattan.bench.results.table import Table, number_range
from tta_cattan.util.files import write_text

PAGE_FILE = "report.html"
_HERE = Path(__file__).parent
_WRITERS = {"md": Table.to_markdown, "csv": Table.to_csv, "tex": Table.to_latex}


def write_report(paths: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Write the report of the runs in ``paths`` into the folder ``out`` and return the page's path."""
    jinja = need("jinja2")
    need("matplotlib")
    comparisons = group_runs(find_runs(paths))
    # Names come from files that others may have written, so everything not marked safe is escaped.
    environment = jinja.Environment(
        loader=jinja.FileSystemLoader(_HERE), autoescape=True, undefined=jinja.StrictUndefined, trim_blocks=True
    )
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    page = environment.get_template("page.html").render(
        comparisons=[_section(one, name, Path(out)) for name, one in _file_names(comparisons).items()],
        style=(_HERE / "page.css").read_text(encoding="utf-8"),
        script=script,
        # The page's policy lets only this script run, whatever else gets into the page.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
        created=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    )
    path = Path(out) / PAGE_FILE
    write_text(path, page)
    return path


def _file_names(comparisons: Iterable[Comparison]) -> dict[str, Comparison]:
    """Return the comparisons by the prefix of their files, which is also their anchor on the page."""
    named: dict[str, Comparison] = {}
    for comparison in comparisons:
        name = re.sub(r"[^A-Za-z0-9]+", "-", comparison.title).strip("-")[:60] or "run"
        named[name if name not in named else f"{name}-{len(named) + 1}"] = comparison
    return named


def _section(comparison: Comparison, prefix: str, out: Path) -> dict[str, Any]:
    """Write a comparison's tables and figures, and return what the template needs."""
    names, pairs = list(comparison.variants), compare_all(comparison)
    tables, plots = tables_of(comparison, pairs), plots_of(comparison)
    for table in tables.values():
        for suffix, writer in _WRITERS.items():
            write_text(out / "tables" / f"{prefix}-{table.name}.{suffix}", writer(table))
    return {
        "id": prefix,
        "title": comparison.title,
        "facts": facts(comparison),
        "verdict": verdict(comparison, pairs),
        "tables": tables,
        "outcomes": [[pairs[a, b].outcome if (a, b) in pairs else "open" for b in names] for a in names],
        "figures": [(plot, save(plot.figure, out / "figures", f"{prefix}-{plot.name}")) for plot in plots],
        "runs": [about(run) for run in comparison.runs],
        "configs": {
            name: yaml.safe_dump(dict(variant.config), sort_keys=False, allow_unicode=True)
            for name, variant in comparison.variants.items()
            if variant.config
        },
    }


def facts(comparison: Comparison) -> list[str]:
    """Return the comparison's key facts, in a few words each."""
    records = [record for found in comparison.records.values() for record in found]
    sizes = {int(record.metrics["n"]) for record in records if "n" in record.metrics}
    seeds = sorted({record.cell.seed for record in records})
    methods, domains = len(comparison.summary.methods), len(comparison.summary.domains)
    epochs = comparison.runs[0].fact("config", "TEST", "EPOCHS")
    unit = "stream" if any("windows" in record.info for record in records) else "domain"
    protocol = f"{comparison.protocol} {'stream' if unit == 'stream' else 'protocol'}" if comparison.protocol else ""
    if comparison.protocol == "offline" and epochs:
        protocol += f", {epochs} epochs"
    found = [
        f"{methods} {plural('method', methods)}",
        f"{domains} {plural(unit, domains)}",
        f"{number_range(sizes)} samples per {unit}" if sizes else "",
        protocol,
        f"{plural('seed', len(seeds))} {', '.join(map(str, seeds))}",
    ]
    return [fact for fact in found if fact]


def verdict(comparison: Comparison, pairs: Differences) -> str:
    """Return a sentence: which method leads, and whether the lead is more than luck."""
    averages = comparison.summary.averages
    ranked = sorted(
        (m for m in comparison.summary.methods if (m, "accuracy") in averages),
        key=lambda m: -averages[m, "accuracy"].mean,
    )
    if len(ranked) < 2:
        return ""
    first, second = ranked[:2]
    text = f"{first} has the highest mean accuracy ({100 * averages[first, 'accuracy'].mean:.1f} %)"
    pair = pairs.get((first, second))
    if pair is None:
        return f"{text}, ahead of {second}; without predictions per image, nothing can be said about luck."
    if pair.outcome == "won":
        return f"{text}; its lead over {second}, {pair.text} points, is more than chance in the choice of images."
    return f"{text}, but its lead over {second}, {pair.text} points, is not decided by these images."


def about(run: Run) -> dict[str, Any]:
    """Return the facts about a run."""
    versions = run.fact("versions")
    known = {
        "started": run.fact("created"),
        "source model": run.fact("config", "MODEL", "ARCH"),
        "weights (sha256)": run.fact("model_sha256"),
        "weights from": run.fact("extra", "model_origin"),
        "source subspace (sha256)": run.fact("subspace_sha256"),
        "data": run.fact("dataset", "name"),
        "device": run.fact("machine", "device"),
        "processor": run.fact("machine", "processor"),
        "code": run.fact("git_revision"),
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, dict) else None,
        "results left out": ", ".join(run.left_out),
    }
    return {
        "folder": str(run.folder),
        "fingerprints": {variant.label: variant.fingerprint for variant in run.variants},
        "facts": {name: str(value) for name, value in known.items() if value},
    }
