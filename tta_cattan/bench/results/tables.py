"""A summary as Markdown, CSV, JSON and plain text."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tta_cattan.bench.domain import Domain
from tta_cattan.bench.results import layout
from tta_cattan.bench.results.layout import Entry, Table, mark_best
from tta_cattan.bench.results.summary import Statistic, Summary
from tta_cattan.util.files import write_text

_WIDTH = 200
_DASH = "-"
# The column heads of the paper's tables.
_SHORT_NAMES = {
    "gaussian_noise": "gauss",
    "shot_noise": "shot",
    "impulse_noise": "impulse",
    "defocus_blur": "defocus",
    "glass_blur": "glass",
    "motion_blur": "motion",
    "zoom_blur": "zoom",
    "brightness": "bright",
    "elastic_transform": "elastic",
    "pixelate": "pixel",
    "jpeg_compression": "jpeg",
}
METRIC_TITLES = {
    "accuracy": "Accuracy (%)",
    "ece": "ECE",
    "nll": "NLL",
    "brier": "Brier score",
    "seconds": "Seconds",
    "images_per_second": "Images per second",
    "peak_memory": "Peak memory (MB)",
    "extra_bytes": "Kept beside TENT's (kB)",
}
METHOD_NAMES = {
    "source": "Source",
    "norm": "Norm",
    "tent": "TENT",
    "tent_plus": "TENT+",
    "shot": "SHOT",
    "ip": "IP",
    "cattan": "CATTAn",
    "cattan_plus": "CATTAn+",
}
_FORMATS: Mapping[str, Callable[[float], str]] = {
    "accuracy": lambda value: f"{100 * value:.1f}",
    "ece": "{:.2f}".format,
    "nll": "{:.3f}".format,
    "brier": "{:.3f}".format,
    "images_per_second": "{:,.0f}".format,
    "peak_memory": lambda value: f"{value / 1e6:,.0f}",
    "extra_bytes": lambda value: f"{value / 1e3:,.1f}",
}
# Only a metric that is named here has a best value.
_BEST: Mapping[str, Callable[[Iterable[float]], float]] = {
    "accuracy": max,
    "ece": min,
    "nll": min,
    "brier": min,
    "seconds": min,
    "images_per_second": max,
}


def to_markdown(summary: Summary, metric: str = "accuracy") -> str:
    """Return one table of ``metric`` in Markdown."""
    return layout.to_markdown(metric_table(summary, metric))


def metric_table(summary: Summary, metric: str = "accuracy") -> Table:
    """Return the table of ``metric``: a row per method, a column per domain and the average, the best marked."""
    columns = [
        metric_column([summary.cells.get((m, domain, metric)) for m in summary.methods], metric)
        for domain in summary.domains
    ]
    columns.append(average_column(summary, metric))
    names = [Entry(method) for method in summary.methods]
    return Table(["method", *domain_heads(summary), "avg"], list(zip(names, *columns, strict=True)))


def average_column(summary: Summary, metric: str) -> list[Entry]:
    """Return each method's mean over the domains, with its standard deviation over seeds."""
    return metric_column([summary.averages.get((m, metric)) for m in summary.methods], metric, " ± {}")


def metric_column(found: Sequence[Statistic | None], metric: str, spread: str = "") -> list[Entry]:
    """Return a column of a metric with its best marked."""
    column = [Entry(_show(one, metric, spread), None if one is None else one.mean) for one in found]
    return mark_best(column, _BEST[metric], _form(metric)) if metric in _BEST else column


def aligned_text(columns: list[list[str]]) -> str:
    """Return columns as an aligned table for the terminal, in blocks where it is too wide; each repeats the first."""
    return "\n\n".join("\n".join(_align(block)) for block in _blocks(columns))


def to_csv(summary: Summary) -> str:
    """Return every cell in long format and full precision (the averages are in the JSON)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "domain", "severity", "metric", "mean", "std", "n_seeds"])
    for (method, domain, metric), found in summary.cells.items():
        writer.writerow([method, domain.name, domain.severity, metric, found.mean, found.std, found.n_seeds])
    return text.getvalue()


def to_json(summary: Summary) -> str:
    """Return the whole summary in full precision."""
    return json.dumps(
        {
            "schema": 1,
            "complete": summary.complete,
            "missing": summary.missing,
            "methods": summary.methods,
            "domains": [_domain_fields(domain) for domain in summary.domains],
            "metrics": summary.metrics,
            "cells": [
                {"method": method, **_domain_fields(domain), "metric": metric, **vars(found)}
                for (method, domain, metric), found in summary.cells.items()
            ],
            "averages": [
                {"method": method, "metric": metric, **vars(found)}
                for (method, metric), found in summary.averages.items()
            ],
        },
        indent=2,
        allow_nan=False,
    )


def to_text(summary: Summary) -> str:
    """Return an aligned table for the terminal: accuracy per domain and on average, then the average ECE."""
    columns = [["method", *summary.methods]]
    for head, domain in zip(domain_heads(summary), summary.domains, strict=True):
        found = [summary.cells.get((method, domain, "accuracy")) for method in summary.methods]
        columns.append([head, *(_show(one, "accuracy") for one in found)])
    for head, metric in (("avg", "accuracy"), ("ECE", "ece")):
        found = [summary.averages.get((method, metric)) for method in summary.methods]
        columns.append([head, *(_show(one, metric, " ({})") for one in found)])
    note = "accuracy in %; avg and ECE: mean over the domains (standard deviation over seeds)"
    return aligned_text(columns) + f"\n{note}\n" + "".join(f"{line}\n" for line in _incomplete(summary))


def write_summary(folder: str | os.PathLike[str], summary: Summary, header_lines: Iterable[str] = ()) -> None:
    """Write ``summary.md`` (the header lines, then a table per metric), ``summary.csv`` and ``summary.json``."""
    parts = ["\n".join([*header_lines, *_incomplete(summary)])]
    for metric in summary.metrics:
        if metric != "n":  # the size of a domain is not a result
            parts.append(f"## {METRIC_TITLES.get(metric, metric)}\n\n{to_markdown(summary, metric).rstrip()}")
    markdown = "\n\n".join(part for part in parts if part) + "\n"
    for suffix, text in (("md", markdown), ("csv", to_csv(summary)), ("json", to_json(summary) + "\n")):
        write_text(Path(folder) / f"summary.{suffix}", text)


def domain_heads(summary: Summary) -> list[str]:
    """Return short column heads, with the severity only where the columns differ in it."""
    severities = {domain.severity for domain in summary.domains}
    names = [_SHORT_NAMES.get(domain.name, domain.name) for domain in summary.domains]
    if len(severities) < 2:
        return names
    return [f"{name}{domain.severity or ''}" for name, domain in zip(names, summary.domains, strict=True)]


def _incomplete(summary: Summary) -> list[str]:
    """Return the line that warns of missing cells, if any are."""
    if summary.complete:
        return []
    return [f"Incomplete (cells missing: {summary.missing}); an average is over the seeds that have every domain."]


def _show(found: Statistic | None, metric: str, spread: str = "") -> str:
    """Return a mean, and its standard deviation put into ``spread`` where there is one."""
    if found is None:
        return _DASH
    form = _form(metric)
    return form(found.mean) + (spread.format(form(found.std)) if spread and found.std is not None else "")


def _form(metric: str) -> Callable[[float], str]:
    """Return how a metric is written."""
    return _FORMATS.get(metric, "{:.4g}".format)


def _blocks(columns: list[list[str]]) -> Iterable[list[list[str]]]:
    """Split the columns after the first into runs that fit the width, each led by the first column."""
    block, width = [columns[0]], _column_width(columns[0])
    for column in columns[1:]:
        if len(block) > 1 and width + 2 + _column_width(column) > _WIDTH:
            yield block
            block, width = [columns[0]], _column_width(columns[0])
        block.append(column)
        width += 2 + _column_width(column)
    yield block


def _column_width(column: list[str]) -> int:
    """Return the width of a column's widest cell."""
    return max(map(len, column))


def _align(columns: list[list[str]]) -> list[str]:
    """Return the lines of a table: names to the left, numbers to the right."""
    first, *rest = columns
    padded = [[cell.ljust(_column_width(first)) for cell in first]]
    padded += [[cell.rjust(_column_width(column)) for cell in column] for column in rest]
    return ["  ".join(row) for row in zip(*padded, strict=True)]


def _domain_fields(domain: Domain) -> dict[str, str | int]:
    """Return the JSON fields that name a column."""
    return {"domain": domain.name, "severity": domain.severity, "label": domain.label}
