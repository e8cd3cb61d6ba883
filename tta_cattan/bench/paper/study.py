"""A study: one table or figure of the paper as a YAML file under ``cfgs/paper``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tta_cattan.bench.results.published import published_benchmarks
from tta_cattan.config import read_yaml, shipped_folder
from tta_cattan.util.errors import UserError, chosen, nearest

KINDS = ("table", "sweep", "dimension", "recovery")


@dataclass(frozen=True)
class Study:
    """What to run and compare with; the fields are the keys of the file."""

    name: str
    title: str
    kind: str
    cfg: str  # the config of the paper's own setting
    methods: tuple[str, ...]
    published: Mapping[str, str] = field(default_factory=dict)  # setting of the sweep ('': no sweep) -> published table
    pairs: bool = False  # every source>target pair of the benchmark is a column
    sweep: str = ""  # KEY=a,b,c
    overrides: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)  # overrides on the paper's own benchmark only
    says: str = ""  # what the paper says if it prints no figures


def study_names() -> list[str]:
    """Return the names of the studies, tables first."""
    return sorted((path.stem for path in _folder().glob("*.yaml")), key=lambda name: (name[:1] != "t", name))


def load_study(name: str) -> Study:
    names = study_names()
    if name not in names:
        raise UserError(f"there is no study {name!r}.{nearest(name, names)} Studies: {', '.join(names)}")
    return read_study(_folder() / f"{name}.yaml")


def read_study(path: Path) -> Study:
    """Return the study that a file describes; unknown keys are refused."""
    content = read_yaml(path)
    known = {entry.name for entry in fields(Study)} - {"name"}
    for key in content:
        if key not in known:
            raise UserError(
                f"{path}: unknown key {key!r}.{nearest(str(key), known)} A study has {', '.join(sorted(known))}"
            )
    for key in ("title", "kind", "cfg", "methods"):
        if key not in content:
            raise UserError(f"{path}: the key {key!r} is missing")
    content["methods"] = tuple(content["methods"])
    tables = content.get("published", {})
    content["published"] = {"": tables} if isinstance(tables, str) else {str(k): v for k, v in tables.items()}
    study = Study(name=path.stem, **content)
    chosen(f"{path}: kind", study.kind, KINDS)
    for table in study.published.values():
        chosen(f"{path}: published", table, published_benchmarks())
    if (study.kind == "sweep") != bool(study.sweep):
        raise UserError(f"{path}: kind {study.kind!r} and sweep {study.sweep!r} do not belong together")
    return study


def _folder() -> Path:
    return shipped_folder() / "paper"
