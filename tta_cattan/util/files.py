"""Files that are either whole or not there, and hashes that say which file or model it was."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeVar

from tta_cattan.util.disk import disk_errors

if TYPE_CHECKING:
    import numpy as np
    import torch

T = TypeVar("T")

_BLOCK = 1 << 20
_PARTS, _PART = 16, 1 << 12  # of a file that is only looked into
_TEMPORARY = re.compile(r"\.(?P<system>[0-9a-f]{8})-(?P<process>[0-9]{1,9})-\w+\.tmp$")


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that replaces it on success and vanishes on failure.

    Note: a killed process leaves its temporary file behind; the next one that writes to the folder takes it away.
    """
    target = Path(path)
    with disk_errors("write", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent)
        prefix = f".{target.name}.{_system()}-{os.getpid()}-"
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


@cache  # one listing per folder and process: a folder may hold a data set
def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files in a folder whose process was of this system and is no more."""
    if os.name != "posix":
        return  # elsewhere asking for a process by its number may end it
    for path in folder.glob(".*.tmp"):
        found = _TEMPORARY.search(path.name)
        if found and found["system"] == _system() and not _is_alive(int(found["process"])):
            with suppress(OSError):  # another process may have been faster
                path.unlink()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is there, and another user's
    return True


@cache
def _system() -> str:
    """Return eight hexadecimal digits of what makes a process number unique: host, boot, and container on Linux."""
    parts = [platform.node()]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return sha256_text("|".join(parts))[:8]


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` to ``path`` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def save_array(path: str | os.PathLike[str], array: np.ndarray) -> None:
    """Write an .npy file atomically."""
    import numpy as np

    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        # Given the file itself, numpy writes past Python and drops the number of the system's error.
        np.save(SimpleNamespace(write=file.write), np.ascontiguousarray(array), allow_pickle=False)


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def identity_of_files(paths: Sequence[Path], root: Path, most: int = 32) -> str:
    """Return 12 hexadecimal digits of the number of ``paths``, and of names, sizes and parts of up to ``most`` of them.

    Note: a data set of gigabytes is told from another in a moment; a change inside a file that leaves its length and
    the parts looked at alone is not seen.
    """
    digest = hashlib.sha256(f"{len(paths)};".encode())
    for path in evenly(paths, most):
        with disk_errors("read", path), open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"{path.relative_to(root).as_posix()}:{size};".encode())
            for start in range(0, size, max(size // _PARTS, _PART)):
                file.seek(start)
                digest.update(file.read(_PART))
    return digest.hexdigest()[:12]


def evenly(items: Sequence[T], most: int) -> Sequence[T]:
    """Return at most ``most`` of the items, evenly spaced, the first among them."""
    return items[:: -(-len(items) // most) or 1]


def sha256_text(text: str) -> str:
    """Return the SHA-256 of a string."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return one SHA-256 over names, dtypes, shapes and bytes of ``tensors``, whatever their order or device."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _umask() -> int:
    """Return the process's umask (mkstemp ignores it, and results are for colleagues to read)."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
