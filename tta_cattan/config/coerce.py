"""From what YAML, the command line or Python gives to the type that a key has."""

from __future__ import annotations

import numbers
import os
import re
from enum import Enum
from typing import Any

import yaml

from tta_cattan.config.defaults import EMPTY_LIST_ENTRIES
from tta_cattan.util.errors import UserError

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string (quote it)",
    list: "a list, such as [a, b]",
}


class Source(Enum):
    """Where a value comes from, which decides how freely it is read."""

    PYTHON = "python"  # typed already: text is not a number
    FILE = "file"  # PyYAML reads `1e-3` as text
    OVERRIDE = "override"  # all is text: one entry stands for a list, `a,b` for two


class _MismatchError(Exception):
    """A value that does not have the type asked for."""


def coerce(key: str, value: Any, default: Any, source: Source) -> Any:
    """Return ``value`` in the type of ``default``, or raise a UserError that names the key and that type."""
    kind = type(default)
    try:
        if kind is not list:
            return _scalar(value, kind, source)
        entry = type(default[0]) if default else EMPTY_LIST_ENTRIES.get(key, str)
        return [_scalar(item, entry, source) for item in _items(value, source)]
    except _MismatchError as mismatch:
        raise UserError(f"{key} = {value!r}: {mismatch}") from None


def _scalar(value: Any, kind: type, source: Source) -> Any:
    """Return ``value`` as ``kind``; a bool is not a number, and 1 is not a bool."""
    if isinstance(value, str) and kind is not str and source is not Source.PYTHON:
        value = _parsed(value, kind, source)
    if kind is str and isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if kind is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _MismatchError("must be finite") from None
    raise _MismatchError(f"must be {_NAMES[kind]}, not {type(value).__name__}")


def _parsed(text: str, kind: type, source: Source) -> Any:
    """Return the number or bool that ``text`` spells, or ``text`` itself when it spells none."""
    if kind is int and _INTEGER.fullmatch(text):
        return int(text)
    if kind is float and "_" not in text:
        try:
            return float(text)
        except ValueError:
            return text
    if kind is bool and source is Source.OVERRIDE:
        return yaml.SafeLoader.bool_values.get(text.lower(), text)
    return text


def _items(value: Any, source: Source) -> list[Any]:
    """Return the entries of a list; an override may also spell it `a,b`, `[a, b]`, `(a, b)` or `a`."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if source is Source.OVERRIDE:
        if not isinstance(value, str):
            return [value]
        text = value.strip()
        inner = text[1:-1] if text[:1] + text[-1:] in ("[]", "()") else text
        try:
            # BaseLoader makes text of every entry and no other objects: a corruption named `on` stays one.
            return yaml.load(f"[{inner}]", Loader=yaml.BaseLoader)
        except yaml.YAMLError:
            pass
    raise _MismatchError(f"must be {_NAMES[list]}, not {type(value).__name__}")
