"""A table of named objects with clear errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tta_cattan.util.errors import UserError, nearest

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
