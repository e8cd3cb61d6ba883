"""Whether a study runs on the paper's data and settings, said plainly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tta_cattan.config import leaves

if TYPE_CHECKING:
    from yacs.config import CfgNode

_DATA = ("CORRUPTION.", "DATA.", "MODEL.ARCH", "MODEL.CKPT_PATH", "MODEL.IN_FEATURES", "SOURCE.")
# Where things lie and how they are loaded changes no result.
_PLACES = (
    "DATA_DIR", "CKPT_DIR", "SAVE_DIR", "DEVICE", "LOG_", "DESC", "CUDNN", "RNG_SEED", "TEST.NUM_WORKERS",
    "RECOVERY.TAU", "RECOVERY.FALLBACK", "MODEL.ADAPTATION",
)  # fmt: skip


def data_differences(paper: CfgNode, ours: CfgNode, ignored: Iterable[str] = ()) -> list[str]:
    """Return what separates our data and source model from the paper's; nothing where they are the same."""
    if ours.CORRUPTION.DATASET != paper.CORRUPTION.DATASET:
        changed = [(ours.CORRUPTION.DATASET, paper.CORRUPTION.DATASET), (ours.MODEL.ARCH, paper.MODEL.ARCH)]
        return [f"{here} instead of {there}" for here, there in changed if here != there]
    return _differences(paper, ours, lambda key: key.startswith(_DATA) and key not in ignored)


def setting_differences(paper: CfgNode, ours: CfgNode, ignored: Iterable[str] = ()) -> list[str]:
    """Return the other keys in which the config that ran differs from the study's own."""
    return _differences(paper, ours, lambda key: not key.startswith((*_DATA, *_PLACES)) and key not in ignored)


def _differences(paper: CfgNode, ours: CfgNode, counts: Callable[[str], bool]) -> list[str]:
    was = dict(leaves(paper))
    return [
        f"{key} {_short(value)} instead of {_short(was[key])}"
        for key, value in leaves(ours)
        if counts(key) and value != was[key]
    ]


def _short(value: object) -> str:
    """Return a value as it can stand in a line; a long list by its length."""
    if isinstance(value, list):
        return f"{len(value)} entries" if len(value) > 5 else ",".join(map(str, value))
    return repr(value) if value == "" else str(value)
