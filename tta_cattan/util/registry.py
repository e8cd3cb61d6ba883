"""Registries of named objects, and the loading of plug-ins that register methods in them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from tta_cattan.util.errors import UserError, first_line, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps lower-case names to objects of one kind ("adaptation method", "dataset", ...)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str | None = None) -> Callable[[T], T]:
        """Return a decorator that registers an object under ``name`` (default: its own lower-case name)."""

        def decorate(entry: T) -> T:
            key = (name or entry.__name__).lower()  # type: ignore[attr-defined]
            if self._entries.get(key, entry) is not entry:
                raise UserError(
                    f"{self.kind} {key!r} is already registered as {self._entries[key]!r}: choose another name"
                )
            self._entries[key] = entry
            return entry

        return decorate

    def get(self, name: str) -> T:
        """Return the object registered under ``name``, ignoring case."""
        key = str(name).lower()
        if key not in self._entries:
            raise UserError(
                f"unknown {self.kind} {name!r}.{nearest(key, self._entries)}"
                f" Registered: {', '.join(self.registered_names())}"
            )
        return self._entries[key]

    def registered_names(self) -> list[str]:
        """Return the names in order of registration."""
        return list(self._entries)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._entries


GROUP = "tta_cattan.methods"
_imported: list[str] = []


def load_plugins(modules: Iterable[str] = ()) -> None:
    """Import the installed plug-ins and ``modules``, which may be in the current folder."""
    for entry in entry_points(group=GROUP):
        _run(entry.load, f"{entry.value} (entry point {entry.name!r} of {GROUP})")
    for module in modules:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())  # as `python -m` does, unlike an installed command
        _run(partial(importlib.import_module, module), module)
        if module not in _imported:
            _imported.append(module)


def imported_modules() -> list[str]:
    """Return the modules imported by name, for worker processes to import as well."""
    return list(_imported)


def _run(load: Callable[[], object], name: str) -> None:
    """Call ``load``; turn any error into a UserError that names the plug-in."""
    try:
        load()
    except (Exception, SystemExit) as error:
        raise UserError(f"cannot import {name}: {type(error).__name__}: {first_line(error)}") from error
