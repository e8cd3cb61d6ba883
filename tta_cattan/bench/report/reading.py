"""What folders of results hold, gaps and damage included."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from numpy.typing import NDArray

from tta_cattan.bench.domain import Domain
from tta_cattan.bench.results.identity import RUN_FILE
from tta_cattan.bench.results.predictions import predictions_path, read_predictions
from tta_cattan.bench.results.store import RESULTS_FILE, Record, ResultsStore
from tta_cattan.config import leaves
from tta_cattan.util.errors import UserError

logger = logging.getLogger(__name__)

_MAX_BYTES = 1 << 24  # of a description or a config
# One image set under one seed: what two methods can be compared on.
Square = tuple[Domain, int]


@dataclass(frozen=True)
class Variant:
    """One method under one configuration: its results in one run."""

    method: str  # as the results name it, the settings of a sweep included
    fingerprint: str  # of the configuration: the part that all domains share
    folder: Path
    records: Sequence[Record]
    config: Mapping[str, Any] = field(default_factory=dict)  # by dotted key; empty where it is not known

    @cached_property
    def predictions(self) -> dict[Square, dict[str, NDArray[Any]]]:
        """The predictions of every square that has them."""
        found = {
            (record.cell.target, record.cell.seed): read_predictions(
                predictions_path(self.folder, record.cell, record.fingerprint)
            )
            for record in self.records
        }
        return {square: columns for square, columns in found.items() if columns is not None}


@dataclass(frozen=True)
class Run:
    """A folder of results: what it says about itself, and its variants."""

    folder: Path
    description: Mapping[str, Any]
    variants: Sequence[Variant]
    left_out: Sequence[str]  # what a later configuration of the same method, or later files, have replaced

    def fact(self, *path: str) -> Any:
        """Return a fact of ``run.json``, or None."""
        value: Any = self.description
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def find_runs(paths: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """Return the runs in ``paths``: folders with results, or folders of such folders."""
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
        raise UserError(f"no finished cell in {', '.join(map(str, paths))}: there is nothing to report yet")
    unique = {run.folder.resolve(): run for run in runs}
    return list(unique.values())


def _read_run(folder: Path) -> Run:
    """Return a run; of several configurations of one method, the one that ran last.

    Note: where a domain's files were replaced, its results on the earlier ones are left out: methods are compared on
    the same images.
    """
    description = _read_mapping(folder / RUN_FILE)
    records = list(ResultsStore(folder).records())
    files = {record.cell.target: record.files for record in records}
    earlier = [record for record in records if record.files != files[record.cell.target]]
    by_variant: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.files == files[record.cell.target]:
            by_variant.setdefault((record.cell.method, record.configuration), []).append(record)
    extra = description.get("extra")
    current = extra.get("fingerprints") if isinstance(extra, dict) else None
    latest = dict(by_variant.keys())
    for method, fingerprint in (current if isinstance(current, dict) else {}).items():
        if (method, fingerprint) in by_variant:
            latest[method] = fingerprint
    variants = [
        Variant(
            method, latest[method], folder, by_variant[method, latest[method]], _config(folder, method, latest[method])
        )
        for method in latest
    ]
    left_out = [f"{method} ({stamp})" for method, stamp in by_variant if latest[method] != stamp]
    left_out += [f"{record.cell.method} on earlier files of {record.cell.label}" for record in earlier]
    return Run(folder, description, variants, left_out)


def _config(folder: Path, method: str, fingerprint: str) -> dict[str, Any]:
    """Return the resolved config of a variant by dotted key; earlier versions named the file by the method alone."""
    name = method.partition(" [")[0]
    if not (re.fullmatch(r"[\w+-]+", name) and re.fullmatch(r"[0-9a-f]+", fingerprint)):
        return {}  # not names that a run of ours gives: no path is made of them
    for path in (folder / f"config-{name}-{fingerprint}.yaml", folder / f"config-{name}.yaml"):
        if path.is_file():
            return dict(leaves(_read_mapping(path)))
    return {}


def _read_mapping(path: Path) -> dict[str, Any]:
    """Return the JSON or YAML mapping in a file; nothing, with a warning, where it is missing or damaged."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        if not isinstance(value, dict):
            raise ValueError("not a mapping")
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        logger.warning("%s is not read (%s): the report has a gap there", path, error)
        return {}
    return value
