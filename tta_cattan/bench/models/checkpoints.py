"""Read checkpoints safely, with one-line errors for those that cannot be read."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tta_cattan.util.door import checked_tensor, parsing
from tta_cattan.util.errors import UserError

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "last")  # "last": Kireev2021Effectiveness_*
_PREFIXES = ("", "module.", "model.")


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors or torch file; no code in it is ever run."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"checkpoint {path} does not exist: check the path (MODEL.CKPT_PATH, CKPT_DIR)")
    with open(path, "rb") as file:
        start = file.read(512)
    if not start:
        raise UserError(f"checkpoint {path} is empty: delete it and get it again")
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        raise UserError(
            f"checkpoint {path} is an HTML page, not a checkpoint (a failed download): "
            "delete it and get it again with a browser"
        )
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path, start)
    tensors = {str(name): value for name, value in _unwrap(content).items() if isinstance(value, Tensor)}
    if not tensors:
        raise UserError(f"checkpoint {path} holds no tensors: its keys are {', '.join(list(map(str, content))[:5])}")
    return tensors


def load_weights(model: nn.Module, path: str | Path, ignored: tuple[str, ...] = ()) -> None:
    """Load a checkpoint into ``model``; refuse one of another architecture.

    Note: prefixes of wrappers are stripped, half-precision weights are widened, and ``num_batches_tracked`` may be
    missing or extra. Nothing else may be missing, or extra unless its name starts with one of ``ignored``.
    """
    tensors = read_checkpoint(path)
    wanted = model.state_dict()
    forms = [{name.removeprefix(prefix): value for name, value in tensors.items()} for prefix in _PREFIXES]
    tensors = max(forms, key=lambda form: len(form.keys() & wanted.keys()))
    missing = [name for name in wanted if name not in tensors and not name.endswith("num_batches_tracked")]
    unneeded = tuple(name for name in tensors if name not in wanted and name.startswith(ignored))
    extra = [n for n in tensors if n not in wanted and n not in unneeded and not n.endswith("num_batches_tracked")]
    shaped = [n for n, t in tensors.items() if n in wanted and t.shape != wanted[n].shape]
    for kind, names in (("lacks", missing), ("has the unknown", extra), ("has another shape for", shaped)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise UserError(
                f"checkpoint {path} is of another architecture than {type(model).__name__}: it {kind} {names[0]!r}"
                f"{more}. Check MODEL.ARCH and MODEL.CKPT_PATH"
            )
    checked = {
        name: checked_weight(name, tensors[name], value, path) for name, value in wanted.items() if name in tensors
    }
    with torch.no_grad():
        for name, tensor in checked.items():
            wanted[name].copy_(tensor)


def checked_weight(name: str, tensor: Tensor, like: Tensor, path: str | Path) -> Tensor:
    """Return a checkpoint's tensor in the model's dtype; it must be dense and finite, and a variance not negative."""
    low = 0 if name.rpartition(".")[2] == "running_var" else None
    return checked_tensor(f"{name!r} in checkpoint {path}", tensor, like, low, "get it again or save it anew")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    with parsing(f"checkpoint {path} is damaged or truncated", "get it again"):
        found = load_file(path)
    return found


def _read_torch(path: Path, start: bytes) -> Mapping[str, Any]:
    is_zip = start.startswith(b"PK")
    if is_zip and not zipfile.is_zipfile(path):
        raise UserError(f"checkpoint {path} is truncated ({path.stat().st_size:,} bytes): delete it and get it again")
    with parsing(f"checkpoint {path} is damaged or not a checkpoint", "get it again"):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            kind = "holds more than tensors and is not loaded: code could run from it"
            raise UserError(
                f"checkpoint {path} {kind if is_zip else 'is not a checkpoint'}{_held(str(error))}. Save its "
                "state_dict alone, as safetensors or with torch.save"
            ) from error
    if not isinstance(content, Mapping):
        raise UserError(f"checkpoint {path} holds a {type(content).__name__}, not a state_dict")
    return content


def _held(message: str) -> str:
    """Return the object other than a tensor that torch's message names; the message itself is a page long."""
    found = re.search(r"GLOBAL ([\w.]+)", message)
    return f" (it holds {found[1]})" if found else ""


def _unwrap(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state_dict inside a training checkpoint."""
    for key in _WRAPPERS:
        if isinstance(content.get(key), Mapping):
            return content[key]
    return content
