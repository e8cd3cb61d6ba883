"""Objects as plain dictionaries of tensors and numbers, for states that go into files and come back safely.

Only classes that are registered with ``stateful`` are ever built from a file, and no code of theirs runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from tta_cattan.util.errors import UserError

T = TypeVar("T", bound=type)

_CLASSES: dict[str, type] = {}
_PLAIN = (bool, int, float, str, type(None), torch.device)


def stateful(cls: T) -> T:
    """Register a class whose instances can be packed: what ``vars`` shows of one is its whole state."""
    if _CLASSES.setdefault(cls.__name__, cls).__module__ != cls.__module__:
        raise TypeError(f"two classes are called {cls.__name__}: a file could not tell them apart")
    _CLASSES[cls.__name__] = cls
    return cls


def pack(value: Any) -> Any:
    """Return ``value`` as tensors, numbers, text, lists and dictionaries, which share their tensors with it."""
    if isinstance(value, (*_PLAIN, Tensor)):
        return value
    if isinstance(value, (list, tuple)):
        return {"kind": type(value).__name__, "items": [pack(item) for item in value]}
    if isinstance(value, Mapping):
        return {"kind": "dict", "items": [[pack(key), pack(item)] for key, item in value.items()]}
    if type(value).__name__ in _CLASSES:
        return {"kind": type(value).__name__, "items": {name: pack(item) for name, item in vars(value).items()}}
    raise TypeError(f"{type(value).__name__} is not registered with `stateful`")


def unpack(packed: Any, device: torch.device | None = None) -> Any:
    """Return what ``pack`` was given, its tensors copied, those of numbers (not of places or labels) to ``device``."""
    if isinstance(packed, Tensor):
        moves = device is not None and packed.is_floating_point()
        return packed.detach().to(device, copy=True) if moves else packed.detach().clone()
    if isinstance(packed, _PLAIN):
        return packed
    kind, items = packed["kind"], packed["items"]
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](unpack(item, device) for item in items)
    if kind == "dict":
        return {unpack(key, device): unpack(item, device) for key, item in items}
    if kind not in _CLASSES:
        raise UserError(f"the state holds a {kind!r}, which this version does not know: another version wrote it")

    cls = _CLASSES[kind]
    made: Any = object.__new__(cls)
    for name, item in items.items():
        object.__setattr__(made, name, unpack(item, device))  # frozen dataclasses too
    return made
