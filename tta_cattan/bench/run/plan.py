"""Which cells a comparison consists of, and what decides the value of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_cattan.bench.domain import Domain
from tta_cattan.bench.results.identity import fingerprint, versions
from tta_cattan.bench.results.store import Cell, row_label
from tta_cattan.bench.run.sweep import Sweep, method_nodes, sweeps_of
from tta_cattan.config import load_cfg, to_dict
from tta_cattan.config.tree import leaves
from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from yacs.config import CfgNode

# Keys that say where things lie or which cells are asked for, not what a cell's value is; the weights that RNG_SEED and
# CKPT_PATH lead to are in the model's hash.
_IRRELEVANT = (
    "BN.EPS", "CKPT_DIR", "CUDNN", "DATA_DIR", "DESC", "DEVICE", "LOG_DEST", "LOG_TIME", "RNG_SEED", "SAVE_DIR",
    "SEEDS", "SOURCE", "CORRUPTION.SEVERITY", "CORRUPTION.TYPE", "MODEL.CKPT_PATH", "TEST.NUM_WORKERS",
    "CATTAN.SOURCE_BASIS", "DATA.TARGET", "RECOVERY.TAU", "RECOVERY.FALLBACK",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One row of a comparison: a method under its config, and the settings that a sweep gave it."""

    cfg: CfgNode
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def method(self) -> str:
        """The registered name of the method."""
        return self.cfg.MODEL.ADAPTATION.lower()

    @property
    def label(self) -> str:
        """The name of the row in results and tables: ``cattan``, or ``cattan [CATTAN.D=64]`` in a sweep."""
        return row_label(self.method, self.changes)


@dataclass(frozen=True)
class Job:
    """One cell to compute: its config, and the fingerprint of everything that decides its value."""

    cfg: CfgNode
    cell: Cell
    fingerprint: str = ""


def plan_rows(
    path: str | Path | None, overrides: Sequence[Any], methods: Sequence[str], sweeps: Sequence[Sweep] = ()
) -> list[Row]:
    """Return the rows of a comparison: each method, under each combination of the settings that concern it.

    Note: a method's config is its own file beside ``path`` where there is one, otherwise ``path``:
    ``--methods tent,cattan --cfg cfgs/imagenet_c/cattan.yaml`` gives TENT the settings of ``tent.yaml``.
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


def _method_files(
    path: str | Path | None, overrides: Sequence[Any], methods: Sequence[str]
) -> list[tuple[str, str | Path | None]]:
    """Return each method's registered name and the file that speaks for it."""
    own = load_cfg(path).MODEL.ADAPTATION.lower()
    files = []
    for method in methods or [load_cfg(path, overrides).MODEL.ADAPTATION]:
        ADAPTATION_REGISTRY.get(method)
        sibling = None if path is None else Path(path).with_name(f"{method.lower()}.yaml")
        # A file speaks for the method that it names, whatever stands beside it.
        beside = method.lower() != own and sibling is not None and sibling.is_file()
        files.append((method.lower(), sibling if beside else path))
    return files


def cell_fingerprint(
    cfg: CfgNode, model_hash: str, subspace_hash: str | None, data: Mapping[str, Any], device: str = "cpu"
) -> str:
    """Return the fingerprint of everything that could change a result of ``cfg``'s method.

    Note: the keys of other methods are left out, so that changing one method repeats no cell of another.
    """
    config = to_dict(cfg)
    protocol = [] if cfg.TEST.PROTOCOL == "recovery" else ["RECOVERY"]
    for key in (*_IRRELEVANT, *method_nodes(cfg.MODEL.ADAPTATION), *protocol):
        node, _, leaf = key.rpartition(".")
        (config.get(node, {}) if node else config).pop(leaf, None)
    return fingerprint(
        {
            "config": config,
            "model": model_hash,
            "subspace": subspace_hash or "",
            "data": dict(data),
            "device": device,
            "versions": {name: versions()[name] for name in ("torch", "torchvision", "numpy", "tta-cattan")},
        }
    )


def seeds(cfg: CfgNode) -> list[int]:
    """Return the seeds to average over."""
    return list(cfg.SEEDS) or [cfg.RNG_SEED]


def plan_cells(rows: Iterable[Row], domains: Iterable[Sequence[Domain]]) -> list[tuple[Row, Cell]]:
    """Return all cells in the order in which they are computed: by row, then its domains, then seed."""
    return [
        (row, Cell(row.method, domain.name, domain.severity, seed, row.changes))
        for row, its_domains in zip(rows, domains, strict=True)
        for domain in its_domains
        for seed in seeds(row.cfg)
    ]
