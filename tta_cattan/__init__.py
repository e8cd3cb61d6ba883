"""CATTAn, test-time adaptation by deep subspace alignment, and the baselines it is compared with."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tta_cattan.alignment import (
        SourceMoments,
        Subspace,
        fit_source,
        fit_source_moments,
        fit_subspace,
        select_dimension,
    )
    from tta_cattan.config import cfg, load_cfg
    from tta_cattan.methods import (
        ADAPTATION_REGISTRY,
        IP,
        AdaptationMethod,
        CATTAn,
        CATTAnForward,
        CATTAnPlus,
        Norm,
        Shot,
        Source,
        Tent,
        TentPlus,
        setup_model,
    )
    from tta_cattan.monitor import Monitor
    from tta_cattan.util.errors import UserError
    from tta_cattan.util.keys import above, at_least, key, one_of, within

# Imported on first use: importing torch takes seconds, and `tta-cattan --help` must not.
_MODULES = {
    "alignment": "SourceMoments Subspace fit_source fit_source_moments fit_subspace select_dimension",
    "config": "cfg load_cfg",
    "methods": "ADAPTATION_REGISTRY AdaptationMethod IP CATTAn CATTAnForward CATTAnPlus Norm Shot Source Tent TentPlus "
    "setup_model",
    "monitor": "Monitor",
    "util.errors": "UserError",
    "util.keys": "above at_least key one_of within",
}
_EXPORTS = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names.split()}
_SUBMODULES = ("losses", "metrics")

__all__ = [
    "ADAPTATION_REGISTRY",
    "IP",
    "AdaptationMethod",
    "CATTAn",
    "CATTAnForward",
    "CATTAnPlus",
    "Monitor",
    "Norm",
    "Shot",
    "Source",
    "SourceMoments",
    "Subspace",
    "Tent",
    "TentPlus",
    "UserError",
    "above",
    "at_least",
    "cfg",
    "fit_source",
    "fit_source_moments",
    "fit_subspace",
    "key",
    "load_cfg",
    "losses",
    "metrics",
    "one_of",
    "select_dimension",
    "setup_model",
    "within",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
