"""The door: every file, array, tensor and text that comes from outside is checked here before anything is computed.

Each function returns what it was given, or raises a one-line UserError that names the thing, the value and the remedy.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_cattan.util.errors import UserError, first_line

if TYPE_CHECKING:
    import numpy as np
    import torch

_KINDS = {"uint8": "uint8", "integer": "integers", "real": "real numbers"}
_FILE_TYPES = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
_GET_AGAIN = "get it again"
_MOST_JSON = 100 << 20  # bytes
_MOST_SAMPLES = 10**15
FIT_AGAIN = "make it anew with `tta-cattan fit-source`"


def regular_file(path: str | os.PathLike[str], remedy: str = "move it away or give another path") -> Path:
    """Return the path of a regular file; refuse a folder, and a pipe or device, which could block or never end.

    Note: raises OSError if the path does not exist.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _FILE_TYPES if is_kind(mode)), "a device")
        raise UserError(f"{os.fspath(path)} is {kind}, not a file: {remedy}")
    return Path(path)


@contextmanager
def parsing(problem: str, remedy: str) -> Iterator[None]:
    """Turn any error that damaged bytes cause in the block into a UserError ``problem (why): remedy``."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{problem} ({first_line(error)}): {remedy}") from error


def open_npy(path: str | os.PathLike[str], remedy: str = _GET_AGAIN) -> np.ndarray:
    """Return the array in an ``.npy`` file as a memory map, without unpickling, which could run code."""
    import numpy as np

    with parsing(f"{os.fspath(path)} is not an .npy file", remedy):
        array = np.load(regular_file(path, remedy), mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        array.close()
        raise UserError(f"{os.fspath(path)} is not an .npy file (it is an .npz archive): {remedy}")
    return np.asarray(array)  # still memory-mapped, without np.memmap's overhead on every access


def read_json(path: str | os.PathLike[str], kind: str, remedy: str) -> dict[str, Any]:
    """Return the JSON object in a file; error messages call the file ``kind``."""
    with parsing(f"{os.fspath(path)} is not {kind}", remedy):
        if (size := regular_file(path, remedy).stat().st_size) > _MOST_JSON:
            raise ValueError(f"{size:,} bytes are more than {_MOST_JSON:,}")
        value = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
    return value


def fitted_tensors(
    path: str | os.PathLike[str], kind: str, form: str, most_bytes: int, positive: Sequence[str]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the header and tensors of a ``fit-source`` file: a ``kind`` in format ``form``, at most ``most_bytes``.

    The header maps names to JSON values, with a ``count`` and a ``provenance``; the tensors must be finite, and
    non-negative if their name starts with one of ``positive``.
    """
    import torch
    from safetensors import safe_open

    path = Path(path)
    if not path.is_file():
        raise UserError(f"{kind} file {path} does not exist: make it with `tta-cattan fit-source --cfg ...`")
    if path.stat().st_size > most_bytes:
        raise UserError(f"{kind} file {path} has {path.stat().st_size:,} bytes: more than {most_bytes:,}")
    with parsing(f"{path} is not a {kind} file", FIT_AGAIN), safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    if header.pop("format", None) != form:
        raise UserError(f"{path} is a safetensors file, but not a {kind} file of the format {form!r}: {FIT_AGAIN}")
    facts: dict[str, Any] = {}
    for name, value in header.items():
        try:
            facts[name] = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{kind} file {path} is damaged: its {name} is {value[:60]!r}; {FIT_AGAIN}") from error
    count = facts.get("count")
    if type(count) is not int or not 0 <= count <= _MOST_SAMPLES or not isinstance(facts.get("provenance"), dict):
        raise UserError(f"{kind} file {path} is damaged: its count is {count}, or it has no provenance; {FIT_AGAIN}")
    for name, tensor in tensors.items():
        low = 0 if name.startswith(tuple(positive)) else None
        like = torch.empty(tensor.shape, dtype=torch.float32)
        checked_tensor(f"{name!r} in {kind} file {path}", tensor, like, low, FIT_AGAIN)
    return facts, tensors


def checked_array(
    name: str,
    array: np.ndarray,
    kind: str,
    shape: Sequence[int | None],
    low: float | None = None,
    high: float | None = None,
    remedy: str = _GET_AGAIN,
) -> np.ndarray:
    """Return ``array`` if it has this kind (``uint8``, ``integer`` or ``real``), shape (None: any length) and range.

    Note: real numbers must be finite; ``low`` and ``high`` are inclusive.
    """
    import numpy as np

    wanted = f"it must be {_KINDS[kind]} of shape {_shown(shape)}"
    if not _is_kind(array.dtype, kind) or not _fits(array.shape, shape):
        raise UserError(f"{name} is {array.dtype} of shape {array.shape}: {wanted}; {remedy}")
    if not array.size:
        raise UserError(f"{name} is empty: {wanted}; {remedy}")
    if kind == "real" and not np.isfinite(array).all():
        raise UserError(f"{name} holds NaN or Inf: its numbers must be finite; {remedy}")
    if (low is not None and array.min() < low) or (high is not None and array.max() > high):
        raise UserError(
            f"{name} has values from {array.min()} to {array.max()}: they must be in "
            f"[{'-inf' if low is None else low}, {'inf' if high is None else high}]; {remedy}"
        )
    return array


def checked_labels(name: str, labels: np.ndarray, n: int | None, num_classes: int, remedy: str = _GET_AGAIN) -> Any:
    """Return ``n`` labels (None: any number) of ``num_classes`` classes, as int64 in native byte order."""
    return checked_array(name, labels, "integer", (n,), 0, num_classes - 1, remedy).astype("int64")


def checked_tensor(
    name: str, tensor: torch.Tensor, like: torch.Tensor, low: float | None = None, remedy: str = _GET_AGAIN
) -> torch.Tensor:
    """Return ``tensor`` in the dtype of ``like``; it must be dense, finite, >= ``low`` and match in shape and kind.

    Note: half precision is widened, and a number that overflows the dtype counts as infinite.
    """
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        form = "quantised" if tensor.is_quantized else "without data" if tensor.is_meta else "sparse"
        raise UserError(f"{name} is {form}: it must be a dense tensor; {remedy}")
    if tensor.shape != like.shape:
        raise UserError(f"{name} has shape {tuple(tensor.shape)}: it must have {tuple(like.shape)}; {remedy}")
    if _number_kind(tensor.dtype) != _number_kind(like.dtype):
        raise UserError(f"{name} is {_dtype(tensor)}: it must be {_dtype(like)}; {remedy}")
    tensor = tensor.to(like.dtype)
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise UserError(f"{name} holds NaN or Inf: its numbers must be finite; {remedy}")
    if low is not None and tensor.numel() and tensor.min() < low:
        raise UserError(f"{name} has the value {tensor.min().item():g}: it must be >= {low:g}; {remedy}")
    return tensor


def _is_kind(dtype: np.dtype, kind: str) -> bool:
    return dtype == "uint8" if kind == "uint8" else dtype.kind in ("iu" if kind == "integer" else "iuf")


def _fits(shape: tuple[int, ...], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(w is None or w == n for n, w in zip(shape, wanted, strict=True))


def _shown(shape: Sequence[int | None]) -> str:
    return " x ".join("N" if n is None else str(n) for n in shape)


def _number_kind(dtype: torch.dtype) -> str:
    import torch

    if dtype.is_complex or dtype.is_floating_point:
        return "complex" if dtype.is_complex else "floating"
    return "bool" if dtype is torch.bool else "integer"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
