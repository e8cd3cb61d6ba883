"""Keys: one declaration of an option's default, check, meaning, origin and role, for configs and constructors alike."""

from __future__ import annotations

import inspect
import math
import numbers
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar

import yaml

from tta_cattan.util.errors import UserError, nearest

# What a key decides, in this order: the data, the network, where its weights come from, how a method adapts, the order
# in which it sees the data, which results are requested, where files are and how they are loaded, which seeds are run,
# and what affects no result.
ROLES = ("data", "model", "weights", "method", "protocol", "selection", "place", "seed", "presentation")

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string (quote it)",
    list: "a list, such as [a, b]",
}


@dataclass(frozen=True)
class Check:
    """A rule in words ("must be >= 0") and the function that applies it; checks with the same words are equal."""

    rule: str
    accepts: Callable[[Any], bool] = field(compare=False)
    options: tuple[str, ...] = ()


def one_of(*options: str) -> Check:
    """Return the check that a value is one of ``options``."""
    return Check(f"must be one of {', '.join(map(repr, options))}", lambda value: value in options, options)


def at_least(low: float) -> Check:
    """Return the check ``value >= low``."""
    return Check(f"must be >= {low}", lambda value: value >= low)


def above(low: float) -> Check:
    """Return the check ``value > low``."""
    return Check(f"must be > {low}", lambda value: value > low)


def within(low: float, high: float, ends: str = "[]") -> Check:
    """Return the check that a value is in an interval; ``ends`` is ``"[]"``, ``"[)"``, ``"(]"`` or ``"()"``."""

    def accepts(value: float) -> bool:
        return (value > low or (value == low and ends[0] == "[")) and (
            value < high or (value == high and ends[1] == "]")
        )

    return Check(f"must be in {ends[0]}{low}, {high}{ends[1]}", accepts)


def distinct(entry: Check, required: bool = True) -> Check:
    """Return the check for a list: no duplicates, at least one entry if ``required``, each accepted by ``entry``."""

    def accepts(values: list[Any]) -> bool:
        return len(set(values)) == len(values) >= required and all(map(entry.accepts, values))

    some = "at least one entry" if required else "any number of entries"
    return Check(f"must have {some}, none twice, and each {entry.rule}", accepts)


NOT_EMPTY = Check("must not be empty", lambda value: bool(value.strip()))


class Source(Enum):
    """Where a value comes from, which decides how leniently it is parsed."""

    PYTHON = "python"  # already typed: text is not a number
    FILE = "file"  # PyYAML reads `1e-3` as text
    OVERRIDE = "override"  # always text: `a` stands for a list of one entry, `a,b` for two


@dataclass(frozen=True)
class Key:
    """One option: its default (whose type is the key's), meaning, check, origin and role.

    ``at`` is its place in a config; without one, a method's key is in the method's node under its upper-case name.
    ``entry`` is the entry type if the default is an empty list. ``config_only`` keys are read by the code that sets up
    a method, not by its constructor.
    """

    default: Any
    meaning: str
    check: Check | None = None
    origin: str = "ours"
    role: str = "method"
    at: str = ""
    entry: type = str
    config_only: bool = False

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UserError(f"role = {self.role!r}: a key's role is one of {', '.join(ROLES)}")
        self.accept(self.at or "default", self.default)

    def accept(self, name: str, value: Any, source: Source = Source.PYTHON) -> Any:
        """Return ``value`` as the key's type; refuse a wrong type, NaN, infinity, NUL, and what fails the check."""
        value = self._typed(name, value, source)
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, float) and not math.isfinite(entry):
                raise UserError(f"{name} = {value!r}: must be finite")
            if isinstance(entry, str) and "\0" in entry:
                raise UserError(f"{name} = {value!r}: must not hold a NUL character")
        if self.check is not None and not self.check.accepts(value):
            hint = "." + nearest(value, self.check.options) if isinstance(value, str) and self.check.options else ""
            raise UserError(f"{name} = {value!r}: {self.check.rule}{hint}")
        return value

    def _typed(self, name: str, value: Any, source: Source) -> Any:
        """Return ``value`` converted to the type of the default."""
        kind = type(self.default)
        if kind not in _NAMES:
            raise UserError(
                f"{name} = {self.default!r}: a default is a bool, int, float, str, or a list of one of them"
            )
        try:
            if kind is not list:
                return _scalar(value, kind, source)
            entry = type(self.default[0]) if self.default else self.entry
            return [_scalar(item, entry, source) for item in _items(value, source)]
        except _MismatchError as mismatch:
            raise UserError(f"{name} = {value!r}: {mismatch}") from None


def key(default: Any, meaning: str, check: Check | None = None, **options: Any) -> Any:
    """Return a `Key` that declares a class attribute: ``d: int = key(0, "dimension", at_least(0))``."""
    return Key(default, meaning, check, **options)


class Keyed:
    """A class whose body declares keys, which are constructor options and config entries alike.

    A subclass changes the default of an inherited key by assigning it: ``lr = 1e-4``.
    """

    node: ClassVar[str] = ""  # config node of the keys that only this class has
    keys: ClassVar[dict[str, Key]] = {}
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        keys: dict[str, Key] = {}
        for base in reversed(cls.__mro__[1:]):
            keys |= vars(base).get("keys", {})
        for name, value in list(vars(cls).items()):
            if isinstance(value, Key):
                keys[name] = value
                setattr(cls, name, value.default)
            elif name in keys:
                keys[name] = replace(keys[name], default=keys[name].accept(f"{cls.__name__}.{name}", value))
        cls.keys = keys
        given = [p for p in inspect.signature(cls.__init__).parameters.values() if p.name not in ("self", "options")]
        options = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=k.default, annotation=type(k.default).__name__
            )
            for name, k in cls.constructor_keys().items()
        ]
        cls.__signature__ = inspect.Signature([*given, *options])

    @classmethod
    def constructor_keys(cls) -> dict[str, Key]:
        """Return the keys that the constructor takes."""
        return {name: declared for name, declared in cls.keys.items() if not declared.config_only}

    def set_options(self, given: Mapping[str, Any]) -> None:
        """Set every option to its given or default value; refuse unknown options and invalid values."""
        own = self.constructor_keys()
        for name in given:
            if name not in own:
                raise UserError(
                    f"{type(self).__name__} has no option {name!r}.{nearest(name, own)} Options: "
                    f"{', '.join(sorted(own))}"
                )
        for name, declared in own.items():
            setattr(self, name, declared.accept(name, given.get(name, declared.default)))

    @classmethod
    def place_of(cls, name: str) -> str:
        """Return where a config holds the key ``name``: ``OPTIM.LR``, ``CATTAN.D``."""
        return cls.keys[name].at or f"{cls.node}.{name.upper()}"

    @classmethod
    def value_in(cls, cfg: Mapping[str, Any], name: str) -> Any:
        """Return the value of the key ``name`` in ``cfg``."""
        for part in cls.place_of(name).split("."):
            cfg = cfg[part]
        return cfg


class _MismatchError(Exception):
    """A value that does not have the required type."""


def _scalar(value: Any, kind: type, source: Source) -> Any:
    """Return ``value`` as ``kind``; a bool is not a number, and 1 is not a bool."""
    if isinstance(value, str) and kind is not str and source is not Source.PYTHON:
        value = _parsed(value, kind, source)
    if kind is str and isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        if abs(int(value)) >= 2**63:
            raise _MismatchError("must fit 64 bits")
        return int(value)
    if kind is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _MismatchError("must be finite") from None
    raise _MismatchError(f"must be {_NAMES[kind]}, not {type(value).__name__}")


def _parsed(text: str, kind: type, source: Source) -> Any:
    """Return the number or bool that ``text`` spells, or ``text`` itself if it spells neither."""
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
            # BaseLoader reads every entry as text and builds no other objects: a corruption named `on` stays text.
            return yaml.load(f"[{inner}]", Loader=yaml.BaseLoader)
        except yaml.YAMLError:
            pass
    raise _MismatchError(f"must be {_NAMES[list]}, not {type(value).__name__}")
