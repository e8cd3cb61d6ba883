"""How a study's data and settings differ from the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tta_cattan.config import leaves, method_keys, shared_keys

if TYPE_CHECKING:
    from yacs.config import CfgNode


def is_data_key(key: str) -> bool:
    """Whether a key decides the data or the source model."""
    return key in shared_keys("data", "model", "weights", "selection")


def is_setting_key(key: str) -> bool:
    """Whether a key, not of the data, can change a result; places and devices cannot."""
    settings = {*shared_keys("protocol", "seed"), *method_keys()}
    return key in settings and not is_data_key(key)


def data_differences(paper: CfgNode, ours: CfgNode, ignored: Iterable[str] = ()) -> list[str]:
    """Return how our data and source model differ from the paper's."""
    if ours.CORRUPTION.DATASET != paper.CORRUPTION.DATASET:
        changed = [(ours.CORRUPTION.DATASET, paper.CORRUPTION.DATASET), (ours.MODEL.ARCH, paper.MODEL.ARCH)]
        return [f"{here} instead of {there}" for here, there in changed if here != there]
    return _differences(paper, ours, lambda key: is_data_key(key) and key not in ignored)


def setting_differences(paper: CfgNode, ours: CfgNode, ignored: Iterable[str] = ()) -> list[str]:
    """Return how our other settings differ from the study's."""
    return _differences(paper, ours, lambda key: is_setting_key(key) and key not in ignored)


def _differences(paper: CfgNode, ours: CfgNode, counts: Callable[[str], bool]) -> list[str]:
    was = dict(leaves(paper))
    return [
        f"{key} {_short(value)} instead of {_short(was[key])}"
        for key, value in leaves(ours)
        if counts(key) and value != was[key]
    ]


def _short(value: object) -> str:
    """Return a value as short text; a long list by its length."""
    if isinstance(value, list):
        return f"{len(value)} entries" if len(value) > 5 else ",".join(map(str, value))
    return repr(value) if value == "" else str(value)
