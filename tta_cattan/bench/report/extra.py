"""The libraries of the extra ``[report]``, imported when they are needed."""

from __future__ import annotations

import importlib
from types import ModuleType

from tta_cattan.util.errors import UserError


def need(name: str) -> ModuleType:
    """Import a library of the extra, or say how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise UserError(
            f"the report needs {package}, which is not installed: pip install 'tta-cattan[report]'"
        ) from error
