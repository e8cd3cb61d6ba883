"""Which cells a comparison consists of, and what decides the value of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from tta_cattan.bench import Domain
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY, DomainBenchmark
from tta_cattan.bench.results.identity import fingerprint, versions
from tta_cattan.bench.results.store import Cell, row_label
from tta_cattan.config import (
    RESET_EACH_SHIFT,
    find_key,
    leaves,
    load_cfg,
    method_keys,
    own_keys,
    shared_keys,
)
from tta_cattan.config.declared import SHARED
from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.util.errors import UserError

_FIT = "it is fixed when a subspace is fitted; make files with `tta-cattan fit-source` and sweep CATTAN.SOURCE_BASIS"
# Keys that have one value per run or an option of their own, or that a file in CKPT_DIR would silently override.
_REFUSED = {
    "SOURCE.PER_CLASS": _FIT,
    "DATA.SOURCE_DIR": _FIT,
    "MODEL.ADAPTATION": "compare methods with --methods",
    "SETTING": "each setting has a table of its own; run them one after the other",
    "SAVE_DIR": "a run has one folder",
    "LOG_DEST": "a run has one log",
}
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[(]*[\])])")
# Roles of the keys that decide a cell's value, besides the weights, the subspace and the files, which are hashed.
_DECIDING = ("data", "model", "method", "protocol")
# Without a stream, each domain is a result of its own and these keys have no effect.
_OF_STREAMS = {"SETTING", "STREAM.ROUNDS", "STREAM.IMBALANCE", "STREAM.WAITS", "TEST.DELTA_DIRICHLET"}


@dataclass(frozen=True)
class Sweep:
    """A key and its settings, as text."""

    key: str
    settings: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Return the sweep that ``KEY=a,b,c`` spells; a setting that is itself a list is given in brackets."""
        key, equals, settings = text.partition("=")
        values = tuple(value.strip() for value in _COMMA_OUTSIDE_BRACKETS.split(settings))
        if not equals or not all(values):
            raise UserError(f"--sweep {text!r}: give KEY=a,b,c, e.g. CATTAN.D=64,128,256")
        if key in _REFUSED:
            raise UserError(f"--sweep {text!r}: {key} cannot be swept: {_REFUSED[key]}")
        find_key(key, f"--sweep {text!r}")
        return cls(key, values)


def parse_sweeps(texts: Iterable[str], overrides: Sequence[Any] = ()) -> list[Sweep]:
    """Return one sweep per text; refuse a key that is given in two sweeps, or in a sweep and as an override."""
    sweeps: list[Sweep] = []
    for text in texts:
        sweep = Sweep.parse(text)
        if sweep.key in [other.key for other in sweeps] or sweep.key in overrides[::2]:
            raise UserError(f"--sweep {text!r}: {sweep.key} is given twice")
        sweeps.append(sweep)
    return sweeps


def sweeps_of(method: str, sweeps: Iterable[Sweep]) -> list[Sweep]:
    """Return the sweeps over keys that ``method`` reads: sweeping another method's keys would only repeat it."""
    own = own_keys(method)
    return [sweep for sweep in sweeps if sweep.key in own]


@dataclass(frozen=True)
class Row:
    """One row of a comparison: a method under its config, and the settings that a sweep gave it."""

    cfg: CfgNode
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def method(self) -> str:
        return self.cfg.MODEL.ADAPTATION.lower()

    @property
    def label(self) -> str:
        """The name of the row in results and tables: ``cattan``, or ``cattan [CATTAN.D=64]`` in a sweep."""
        return row_label(self.method, self.changes)


@dataclass(frozen=True)
class Job:
    """One cell to compute: its config, and the fingerprint of everything that decides its value.

    ``checkpoint`` is the file from which a stream resumes.
    """

    cfg: CfgNode
    cell: Cell
    fingerprint: str = ""
    checkpoint: Path | None = None


def plan_rows(
    path: str | Path | None, overrides: Sequence[Any], methods: Sequence[str], sweeps: Sequence[Sweep] = ()
) -> list[Row]:
    """Return the rows of a comparison: each method under each combination of the settings of keys that it reads.

    Note: a method's config is its own file beside ``path`` if there is one, else the folder's ``base.yaml``, else
    ``path``: ``--methods tent,cattan --cfg cfgs/imagenet_c/cattan.yaml`` gives TENT the settings of ``tent.yaml``.
    """
    rows = []
    for method, file in _method_files(path, overrides, methods):
        own = sweeps_of(method, sweeps)
        for settings in product(*(sweep.settings for sweep in own)):
            pairs = [text for pair in zip((sweep.key for sweep in own), settings, strict=True) for text in pair]
            cfg = load_cfg(file, [*overrides, *pairs, "MODEL.ADAPTATION", method])
            values = dict(leaves(cfg))
            rows.append(Row(cfg, tuple((sweep.key, values[sweep.key]) for sweep in own)))
    labels = [row.label for row in rows]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"{label} is asked for twice: name each method and each setting of a sweep once")
    swept = {key for row in rows for key, _ in row.changes}
    for sweep in sweeps:
        if sweep.key not in swept:
            names = ", ".join(row.method for row in rows)
            raise UserError(f"--sweep {sweep.key}: none of the methods compared reads it ({names})")
    return rows


def check_read(overrides: Sequence[Any], rows: Sequence[Row]) -> None:
    """Refuse a command-line key that no row reads: it would silently have no effect."""
    own = {place for row in rows for place in own_keys(row.method)}
    cfg = rows[0].cfg
    dataset = BENCHMARK_REGISTRY.get(cfg.CORRUPTION.DATASET)
    for place in overrides[::2]:
        if place not in own:
            names = ", ".join(dict.fromkeys(row.method for row in rows))
            raise UserError(f"{place} has no effect: no method compared reads it ({names})")
        needed = ""
        if place.startswith("RECOVERY.") and cfg.TEST.PROTOCOL != "recovery":
            needed = "TEST.PROTOCOL recovery"
        elif place in ("TEST.EPOCHS", "TEST.ADAPT_EX") and cfg.TEST.PROTOCOL == "online":
            needed = "TEST.PROTOCOL offline"
        elif (place.startswith("STREAM.") or place == "TEST.DELTA_DIRICHLET") and not is_stream(cfg):
            needed = "a stream, such as SETTING continual"
        elif place == "BN.BLEND_SCALE" and cfg.BN.STATISTICS != "blend":
            needed = "BN.STATISTICS blend"
        elif place in ("DATA.SOURCE", "DATA.TARGET", "DATA.LISTS") and not issubclass(dataset, DomainBenchmark):
            needed = "a benchmark with source and target domains, such as CORRUPTION.DATASET officehome"
        if needed:
            raise UserError(f"{place} has no effect here: it needs {needed}")


def _method_files(
    path: str | Path | None, overrides: Sequence[Any], methods: Sequence[str]
) -> list[tuple[str, str | Path | None]]:
    """Return each method's registered name and its config file."""
    own = load_cfg(path).MODEL.ADAPTATION.lower()
    files = []
    for method in methods or [load_cfg(path, overrides).MODEL.ADAPTATION]:
        ADAPTATION_REGISTRY.get(method)
        # A file is the config of the method that it names, whatever files are beside it.
        candidates = [] if method.lower() == own else [f"{method.lower()}.yaml", "base.yaml"]
        beside = [file for name in candidates if path and (file := Path(path).with_name(name)).is_file()]
        files.append((method.lower(), beside[0] if beside else path))
    return files


def cell_fingerprint(
    cfg: CfgNode, model_hash: str, subspace_hash: str | None, data: Mapping[str, Any], device: str = "cpu"
) -> str:
    """Return the fingerprint of everything that could change a result of ``cfg``'s method.

    Note: the keys of other methods are left out, so that changing one method recomputes no cell of another.
    """
    own = {**SHARED, **method_keys(cfg.MODEL.ADAPTATION)}
    deciding = {place for place, declared in own.items() if declared.role in _DECIDING}
    if cfg.TEST.PROTOCOL != "recovery":
        deciding -= {place for place in deciding if place.startswith("RECOVERY.")}
    deciding = deciding | set(shared_keys("selection")) if is_stream(cfg) else deciding - _OF_STREAMS
    identity = ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION).identity(cfg)
    return fingerprint(
        {
            **({"method": identity} if identity else {}),
            "config": {place: value for place, value in leaves(cfg) if place in deciding},
            "model": model_hash,
            "subspace": subspace_hash or "",
            "data": dict(data),
            "device": device,
            "versions": {name: versions()[name] for name in ("torch", "torchvision", "numpy", "tta-cattan")},
        }
    )


def is_stream(cfg: CfgNode) -> bool:
    """Return whether all domains form one stream, and thus one cell."""
    return cfg.SETTING != RESET_EACH_SHIFT


def protocol_name(cfg: CfgNode) -> str:
    """Return the name under which the protocol is shown: the setting of a stream, otherwise TEST.PROTOCOL."""
    return cfg.SETTING if is_stream(cfg) else cfg.TEST.PROTOCOL


def seeds(cfg: CfgNode) -> list[int]:
    return list(cfg.SEEDS) or [cfg.RNG_SEED]


def plan_cells(row: Row, domains: Sequence[Domain]) -> list[Cell]:
    """Return a row's cells, by domain, then seed; a stream is one cell per seed, named after its setting."""
    targets = [Domain(protocol_name(row.cfg))] if is_stream(row.cfg) else domains
    return [Cell(row.method, d.name, d.severity, seed, row.changes) for d in targets for seed in seeds(row.cfg)]
