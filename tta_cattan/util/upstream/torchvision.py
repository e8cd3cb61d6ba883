"""Importing torchvision, which fails obscurely beside a torch it was not built for."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from tta_cattan.util.errors import UserError


def import_torchvision(name: str = "torchvision") -> ModuleType:
    """Import torchvision or one of its modules; a pair that does not match is named as such."""
    try:
        return importlib.import_module(name)
    except (RuntimeError, ImportError, OSError) as error:
        pair = f"torch {_version('torch')} and torchvision {_version('torchvision')}"
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{pair} do not work together ({reason}): install both anew, together and by name, "
            "`pip install --force-reinstall torch torchvision`"
        ) from error


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"
