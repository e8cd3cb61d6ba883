"""Importing torchvision and RobustBench, both of which can fail to import as installed."""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType

from tta_cattan.util.errors import UserError, first_line


def import_torchvision(name: str = "torchvision") -> ModuleType:
    """Import torchvision or one of its modules; if it does not match torch, the error names both versions."""
    try:
        return importlib.import_module(name)
    except (RuntimeError, ImportError, OSError) as error:
        pair = f"torch {_version('torch')} and torchvision {_version('torchvision')}"
        raise UserError(
            f"{pair} do not work together ({first_line(error)}): reinstall both together, by name, "
            "`pip install --force-reinstall torch torchvision`"
        ) from error


def import_robustbench(name: str = "robustbench") -> ModuleType:
    """Import RobustBench or one of its modules."""
    import_torchvision()
    heal_autoattack()
    try:
        with warnings.catch_warnings():
            # Its dependencies announce deprecations that its users can do nothing about.
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == "pkg_resources":
            remedy = "setuptools 81 dropped it: `pip install 'setuptools<81'`"
        else:
            remedy = "install it with `pip install 'tta-cattan[robustbench]'`"
        raise UserError(f"RobustBench cannot be imported, {error.name!r} is missing: {remedy}") from error


def heal_autoattack() -> None:
    """Alias ``pyautoattack`` as ``autoattack`` where only the former is installed.

    RobustBench 1.1.1 imports ``autoattack`` and ``autoattack.state``; its dependency installs the same code under the
    other name.
    """
    if "autoattack" in sys.modules or find_spec("autoattack") or not find_spec("pyautoattack"):
        return
    for module in ("", ".state"):
        sys.modules[f"autoattack{module}"] = importlib.import_module(f"pyautoattack{module}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"
