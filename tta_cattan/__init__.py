"""CATTAn, test-time adaptation by deep subspace alignment, and the baselines it is compared with."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tta_cattan.alignment import Subspace, fit_subspace, select_dimension
    from tta_cattan.config import cfg, load_cfg
    from tta_cattan.methods import ADAPTATION_REGISTRY, AdaptationMethod, CATTAn, CATTAnPlus, setup_model
    from tta_cattan.util.errors import UserError

# Looked up on first use: importing torch takes seconds, and `tta-cattan --help` must not.
_EXPORTS = {
    "ADAPTATION_REGISTRY": "tta_cattan.methods",
    "AdaptationMethod": "tta_cattan.methods",
    "CATTAn": "tta_cattan.methods",
    "CATTAnPlus": "tta_cattan.methods",
    "Subspace": "tta_cattan.alignment",
    "UserError": "tta_cattan.util.errors",
    "cfg": "tta_cattan.config",
    "fit_subspace": "tta_cattan.alignment",
    "load_cfg": "tta_cattan.config",
    "select_dimension": "tta_cattan.alignment",
    "setup_model": "tta_cattan.methods",
}
_SUBMODULES = ("losses", "metrics")

__all__ = [
    "ADAPTATION_REGISTRY",
    "AdaptationMethod",
    "CATTAn",
    "CATTAnPlus",
    "Subspace",
    "UserError",
    "cfg",
    "fit_subspace",
    "load_cfg",
    "losses",
    "metrics",
    "select_dimension",
    "setup_model",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
