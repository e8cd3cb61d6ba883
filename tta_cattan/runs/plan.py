"""Which cells a comparison consists of, and what decides the value of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_cattan.config import load_cfg, to_dict
from tta_cattan.domain import Domain
from tta_cattan.errors import UserError
from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.runs.identity import fingerprint, versions
from tta_cattan.runs.store import Cell

if TYPE_CHECKING:
    from yacs.config import CfgNode

# Keys that say where things lie or which cells are asked for, not what a cell's value is; the weights that RNG_SEED and
# CKPT_PATH lead to are in the model's hash.
_IRRELEVANT = (
    "BN.EPS", "CKPT_DIR", "CUDNN", "DATA_DIR", "DESC", "DEVICE", "LOG_DEST", "LOG_TIME", "RNG_SEED", "SAVE_DIR",
    "SEEDS", "SOURCE", "CORRUPTION.SEVERITY", "CORRUPTION.TYPE", "MODEL.CKPT_PATH", "TEST.NUM_WORKERS",
    "CATTAN.SOURCE_BASIS",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One method under its config, with the fingerprint that its results carry."""

    cfg: CfgNode
    fingerprint: str

    @property
    def method(self) -> str:
        """The registered name of the method."""
        return self.cfg.MODEL.ADAPTATION.lower()


def method_configs(path: str | Path | None, overrides: Sequence[Any], methods: Sequence[str]) -> list[CfgNode]:
    """Return one config per method: its own file beside ``path`` where there is one, otherwise ``path``'s.

    Note: ``--methods tent,cattan --cfg cfgs/imagenet_c/cattan.yaml`` thus gives TENT the settings of ``tent.yaml``.
    """
    own = load_cfg(path).MODEL.ADAPTATION.lower()
    configs = []
    for method in methods or [load_cfg(path, overrides).MODEL.ADAPTATION]:
        ADAPTATION_REGISTRY.get(method)
        sibling = None if path is None else Path(path).with_name(f"{method.lower()}.yaml")
        # A file speaks for the method that it names, whatever stands beside it.
        beside = method.lower() != own and sibling is not None and sibling.is_file()
        configs.append(load_cfg(sibling if beside else path, [*overrides, "MODEL.ADAPTATION", method.lower()]))
    names = [cfg.MODEL.ADAPTATION for cfg in configs]
    if len(set(names)) < len(names):
        raise UserError(f"--methods {','.join(names)}: a method is named twice")
    return configs


def cell_fingerprint(
    cfg: CfgNode, model_hash: str, subspace_hash: str | None, data: Mapping[str, Any], device: str = "cpu"
) -> str:
    """Return the fingerprint of everything that could change a result of ``cfg``'s method.

    Note: the keys of other methods are left out, so that changing one method repeats no cell of another.
    """
    own = ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION).config_node
    others = {ADAPTATION_REGISTRY.get(name).config_node for name in ADAPTATION_REGISTRY.registered_names()} - {own}
    config = to_dict(cfg)
    for key in (*_IRRELEVANT, *(node for node in others if node)):
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


def plan_cells(jobs: Iterable[Job], domains: Sequence[Domain]) -> list[tuple[Job, Cell]]:
    """Return all cells in the order in which they are computed: by method, then domain, then seed."""
    return [
        (job, Cell(job.method, domain.name, domain.severity, seed))
        for job in jobs
        for domain in domains
        for seed in seeds(job.cfg)
    ]
