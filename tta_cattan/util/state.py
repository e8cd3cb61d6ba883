"""Checkpoints of unfinished work: plain dictionaries of tensors and numbers, in files that load fully or not at all.

Only classes registered with ``stateful`` are ever built from a file, and none of their code is run.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from tta_cattan.util.door import regular_file
from tta_cattan.util.errors import UserError, first_line
from tta_cattan.util.files import atomic_path

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=type)

_CLASSES: dict[str, type] = {}
_DIGEST = hashlib.sha256().digest_size
_PLAIN = (bool, int, float, str, type(None), torch.device)


def stateful(cls: T) -> T:
    """Register a class whose instances can be packed; ``vars`` of an instance must be its whole state."""
    if _CLASSES.setdefault(cls.__name__, cls).__module__ != cls.__module__:
        raise TypeError(f"two classes are called {cls.__name__}: a file could not tell them apart")
    _CLASSES[cls.__name__] = cls
    return cls


def pack(value: Any) -> Any:
    """Return ``value`` as tensors, numbers, text, lists and dictionaries; the tensors are shared, not copied."""
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
    """Return what ``pack`` was given, with tensors copied; only floating-point ones (no indices) go to ``device``."""
    if isinstance(packed, Tensor):
        moves = device is not None and packed.is_floating_point()
        return packed.detach().to(device, copy=True) if moves else packed.detach().clone()
    if isinstance(packed, _PLAIN):
        return packed
    if not isinstance(packed, Mapping) or not {"kind", "items"} <= packed.keys():
        raise UserError(f"the state holds a {type(packed).__name__} where state_dict() writes none: another program's?")
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


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a SHA-256 followed by the state and that of torch's random generators, atomically."""
    content = io.BytesIO()  # torch.save does not report a full disk as such
    generators = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]
    torch.save({**state, "generators": generators}, content)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(hashlib.sha256(content.getbuffer()).digest())
        file.write(content.getbuffer())


def load_state(path: Path, identity: str | None = None) -> dict[str, Any] | None:
    """Return the state in a file; None if the file is missing, of another ``identity`` or (with a warning) damaged."""
    if not path.exists():
        return None
    try:
        content = regular_file(path).read_bytes()
        if hashlib.sha256(content[_DIGEST:]).digest() != content[:_DIGEST]:
            raise ValueError("its checksum differs")
        state = torch.load(io.BytesIO(content[_DIGEST:]), map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes can make an unpickler raise anything
        logger.warning("the checkpoint %s cannot be read (%s): its work starts again", path, first_line(error))
        return None
    return state if identity is None or state.get("of") == identity else None


def restore_generators(state: Mapping[str, Any]) -> None:
    """Restore torch's random generators to what they were when the state was saved."""
    host, *devices = state["generators"]
    torch.set_rng_state(host)
    if devices and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(devices)
