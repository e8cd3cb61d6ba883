"""Read the results, configs and descriptions in the folders of runs, and what their records say about streams.

Missing and damaged data is tolerated.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tta_cattan.bench import Domain
from tta_cattan.bench.results.identity import RUN_FILE, config_path
from tta_cattan.bench.results.store import (
    RESULTS_FILE,
    Record,
    ResultsStore,
    Settings,
    predictions_path,
    read_predictions,
    row_label,
)
from tta_cattan.config import leaves, read_yaml
from tta_cattan.util.door import read_json
from tta_cattan.util.errors import UserError

logger = logging.getLogger(__name__)

# One image set with one seed, on which two methods can be compared.
Square = tuple[Domain, int]


@dataclass(frozen=True)
class StreamFacts:
    """One stream: (middle, accuracy) of its windows, accuracy by domain, bands (domain, first, last), collapses.

    A monitor's ``readings`` are (seen, estimate, low, high, drift), its ``changes`` the samples seen when it found a
    new domain.
    """

    windows: Sequence[tuple[float, float]]
    domains: Mapping[str, float]
    bands: Sequence[tuple[str, int, int]]
    collapsed_at: Sequence[int]
    readings: Sequence[tuple[float, ...]]
    changes: Sequence[int]

    @classmethod
    def of(cls, record: Record) -> StreamFacts | None:
        """Return the facts of a record, or None if it is not of a stream or is damaged."""
        try:
            info, n = record.info, int(record.metrics["n"])
            size, hits = int(info["windows"]["size"]), info["windows"]["correct"]
            spans = [(start, min(start + size, n)) for start in range(0, n, size)]
            windows = [((a + b) / 2, right / (b - a)) for (a, b), right in zip(spans, hits, strict=True)]
            seen: Counter[str] = Counter()
            correct: Counter[str] = Counter()
            for visit in info["visits"]:
                seen[str(visit["domain"])] += int(visit["n"])
                correct[str(visit["domain"])] += int(visit["correct"])
            domains = {name: correct[name] / seen[name] for name in seen}
            names = [str(visit["domain"]) for visit in info["visits"]]
            bands = [(name, int(a), int(b)) for name, (a, b) in zip(names, info["bands"], strict=False)]
            watched = info.get("monitor", {"readings": (), "changes": ()})
            readings = [tuple(map(float, one)) for one in watched["readings"] if len(one) == 5]
            collapses, changes = (list(map(int, one)) for one in (info["collapsed_at"], watched["changes"]))
            return cls(windows, domains, bands, collapses, readings, changes)
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            return None


@dataclass(frozen=True)
class Variant:
    """One method under one configuration: its results in one run."""

    method: str
    settings: Settings  # of a sweep
    fingerprint: str  # of the configuration
    folder: Path
    records: Sequence[Record]
    config: Mapping[str, Any] = field(default_factory=dict)  # by dotted key; empty if unknown

    @property
    def label(self) -> str:
        """The label of the variant's row in the results."""
        return row_label(self.method, self.settings)

    @cached_property
    def predictions(self) -> dict[Square, dict[str, NDArray[Any]]]:
        """The predictions on each square that has them."""
        found = {
            (record.cell.target, record.cell.seed): read_predictions(
                predictions_path(self.folder, record.cell, record.fingerprint)
            )
            for record in self.records
        }
        return {square: columns for square, columns in found.items() if columns is not None}


@dataclass(frozen=True)
class Run:
    """A folder of results: its description and its variants."""

    folder: Path
    description: Mapping[str, Any]
    variants: Sequence[Variant]
    left_out: Sequence[str]  # other configurations of the same methods, and results on replaced files

    def fact(self, *path: str) -> Any:
        """Return a fact of ``run.json``, or None."""
        return _fact(self.description, *path)


def _fact(description: Any, *path: str) -> Any:
    for key in path:
        description = description.get(key) if isinstance(description, Mapping) else None
    return description


def find_runs(paths: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """Return the runs in ``paths``: folders of results, or folders of such folders."""
    runs = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise UserError(f"{str(path)!r} is not a folder: give the folder of a run, which holds {RESULTS_FILE}")
        folders = (
            [path] if (path / RESULTS_FILE).is_file() else sorted(f.parent for f in path.glob(f"*/{RESULTS_FILE}"))
        )
        if not folders:
            raise UserError(f"{str(path)!r} holds no {RESULTS_FILE}: give the folder of a run (SAVE_DIR/...)")
        runs += [run for run in map(_read_run, folders) if run.variants]
    if not runs:
        raise UserError(f"no finished result in {', '.join(map(str, paths))}: there is nothing to report yet")
    unique = {run.folder.resolve(): run for run in runs}
    return list(unique.values())


def _read_run(folder: Path) -> Run:
    """Return a run with one variant per method and settings: the latest that is finished, if any is.

    Note: methods are compared on the same images, so results on files that have since been replaced are left out.
    """
    description = _read_mapping(folder / RUN_FILE)
    records = list(ResultsStore(folder).records())
    files = {record.cell.target: record.files for record in records}
    replaced = [record for record in records if record.files != files[record.cell.target]]
    by_row: dict[tuple[str, Settings], dict[str, list[Record]]] = {}
    for record in sorted(records, key=_asked_order(description)):
        cell = record.cell
        if record.files == files[cell.target]:
            by_row.setdefault((cell.method, cell.settings), {}).setdefault(record.configuration, []).append(record)
    variants, left_out = [], []
    for (method, settings), by_configuration in by_row.items():
        found = [
            Variant(method, settings, stamp, folder, its_records, _read_config(folder, method, stamp))
            for stamp, its_records in by_configuration.items()
        ]
        label = found[0].label
        domains = {record.cell.target for variant in found for record in variant.records}
        stamp = _fact(description, "extra", "fingerprints", label)
        ranks = [(*_rank(variant, domains), variant.fingerprint == stamp, place) for place, variant in enumerate(found)]
        shown = found[ranks.index(max(ranks))]
        variants.append(shown)
        for variant, (finished, *_) in zip(found, ranks, strict=True):
            if variant is not shown:
                left_out.append(f"{label} ({variant.fingerprint}{'' if finished else ', unfinished'})")
    left_out += [f"{record.cell.label} on earlier files of {record.cell.target.label}" for record in replaced]
    return Run(folder, description, variants, left_out)


def _asked_order(description: Mapping[str, Any]) -> Callable[[Record], tuple[int, ...]]:
    """Return the sort key that puts records in the order of the run's rows and domains.

    Note: several processes finish them in any order. Records that the description does not name come last, unsorted.
    """
    paths = (("extra", "rows"), ("config", "CORRUPTION", "SEVERITY"), ("config", "CORRUPTION", "TYPE"))
    found = [_fact(description, *path) for path in paths]
    asked = [order if isinstance(order, list) else [] for order in found]

    def place(record: Record) -> tuple[int, ...]:
        values = (record.cell.label, record.cell.severity, record.cell.domain)
        pairs = zip(asked, values, strict=True)
        return tuple(order.index(value) if value in order else len(order) for order, value in pairs)

    return place


def _rank(variant: Variant, domains: Iterable[Domain]) -> tuple[bool, int]:
    """Rank the variants of a method: finished on all ``domains`` above unfinished, the latter by number of cells.

    Note: an aborted trial of another configuration must not replace finished results.
    """
    squares = {(record.cell.target, record.cell.seed) for record in variant.records}
    asked = variant.config.get("SEEDS")
    seeds = {seed for _, seed in squares}
    seeds |= {seed for seed in asked if isinstance(seed, int)} if isinstance(asked, list) else set()
    finished = all((domain, seed) in squares for domain in domains for seed in seeds)
    return finished, 0 if finished else len(squares)


def _read_config(folder: Path, method: str, fingerprint: str) -> dict[str, Any]:
    """Return the resolved config of a variant by dotted key."""
    if not (re.fullmatch(r"[\w+:-]+", method) and re.fullmatch(r"[0-9a-f]+", fingerprint)):
        return {}  # no run of ours uses such names: do not build a path from them
    path = config_path(folder, method, fingerprint)
    return dict(leaves(_read_mapping(path))) if path.is_file() else {}


def _read_mapping(path: Path) -> dict[str, Any]:
    """Return the JSON or YAML mapping in a file, or an empty one, with a warning, if it is missing or damaged."""
    try:
        return read_json(path, "the description of a run", "delete it") if path.suffix == ".json" else read_yaml(path)
    except UserError as error:
        logger.warning("%s and is left out of the report", error)
        return {}
