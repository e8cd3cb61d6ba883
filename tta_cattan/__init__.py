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
        AdaptationMethod,
        CATTAn,
        CATTAnForward,
        CATTAnPlus,
        setup_model,
    )
    from tta_cattan.monitor import Monitor
    from tta_cattan.util.errors import UserError
    from tta_cattan.util.keys import above, at_least, key, one_of, within

# Looked up on first use: importing torch takes seconds, and `tta-cattan --help` must not.
_EXPORTS = {
    "ADAPTATION_REGISTRY": "tta_cattan.methods",
    "AdaptationMethod": "tta_cattan.methods",
    "CATTAn": "tta_cattan.methods",
    "CATTAnForward": "tta_cattan.methods",
    "CATTAnPlus": "tta_cattan.methods",
    "Monitor": "tta_cattan.monitor",
    "SourceMoments": "tta_cattan.alignment",
    "Subspace": "tta_cattan.alignment",
    "UserError": "tta_cattan.util.errors",
    "above": "tta_cattan.util.keys",
    "at_least": "tta_cattan.util.keys",
    "cfg": "tta_cattan.config",
    "fit_source": "tta_cattan.alignment",
    "fit_source_moments": "tta_cattan.alignment",
    "fit_subspace": "tta_cattan.alignment",
    "key": "tta_cattan.util.keys",
    "load_cfg": "tta_cattan.config",
    "one_of": "tta_cattan.util.keys",
    "select_dimension": "tta_cattan.alignment",
    "setup_model": "tta_cattan.methods",
    "within": "tta_cattan.util.keys",
}
_SUBMODULES = ("losses", "metrics")

__all__ = [
    "ADAPTATION_REGISTRY",
    "AdaptationMethod",
    "CATTAn",
    "CATTAnForward",
    "CATTAnPlus",
    "Monitor",
    "SourceMoments",
    "Subspace",
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
