"""Modules outside the package that register methods: installed ones by entry point, others by name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import entry_points

from tta_cattan.util.errors import UserError, first_line

GROUP = "tta_cattan.methods"
_imported: list[str] = []


def load_plugins(modules: Iterable[str] = ()) -> None:
    """Import the installed plug-ins and ``modules``, which may lie in the current folder."""
    for entry in entry_points(group=GROUP):
        _run(entry.load, f"{entry.value} (entry point {entry.name!r} of {GROUP})")
    for module in modules:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())  # where `python -m` has it, and an installed command does not
        _run(partial(importlib.import_module, module), module)
        if module not in _imported:
            _imported.append(module)


def imported_modules() -> list[str]:
    """Return the modules imported by name, for worker processes to import as well."""
    return list(_imported)


def _run(load: Callable[[], object], name: str) -> None:
    """Call ``load``; whatever it raises becomes one line that names the plug-in."""
    try:
        load()
    except (Exception, SystemExit) as error:
        raise UserError(f"cannot import {name}: {type(error).__name__}: {first_line(error)}") from error
