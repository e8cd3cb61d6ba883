"""Atomic writes, disk errors the user can act on, and content hashes."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeVar

from tta_cattan.util.door import regular_file
from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import torch

T = TypeVar("T")

_BLOCK = 1 << 20
_SETTLED = 2_000_000_000  # nanoseconds after which a write shows in a file's timestamps, however coarse the clock
_TEMPORARY = re.compile(r"\.(?P<system>[0-9a-f]{8})-(?P<process>[0-9]{1,9})-\w+\.tmp$")

_REMEDIES = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        "free some space and run the same command again (what is finished is kept)",
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "choose a folder that you may read and write, or change its permissions",
    ),
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EEXIST, errno.EISDIR),
        "a file stands where a folder should be, or the reverse: move it away or choose another folder",
    ),
}


@contextmanager
def disk_errors(verb: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a disk error inside the block into a UserError that says what could not be read or written, and why."""
    try:
        yield
    except Exception as error:
        number = _errno(error)
        if number is None:
            raise
        remedy = _REMEDIES.get(number, "check the path and the disk")
        problem = os.strerror(number) if number else str(error)
        raise UserError(f"cannot {verb} {os.fspath(path)!r}: {problem}; {remedy}") from error


def _errno(error: Exception) -> int | None:
    """Return the system's error number (0 if unknown), or None if this is not a disk error."""
    if isinstance(error, OSError):
        return error.errno or 0
    # safetensors only has it in the message: "I/O error: No space left on device (os error 28)".
    said = re.search(r"\(os error (\d+)\)", str(error)) if type(error).__name__ == "SafetensorError" else None
    return int(said.group(1)) if said else None


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that replaces it on success and is deleted on failure.

    Note: a killed process leaves its temporary file behind; the next process that writes to the folder deletes it.
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


@cache  # list each folder once per process: it may hold a data set
def remove_leftovers(folder: Path) -> None:
    """Delete temporary files left behind by dead processes of this system."""
    if os.name != "posix":
        return  # on Windows, os.kill with signal 0 ends the process
    for path in folder.glob(".*.tmp"):
        found = _TEMPORARY.search(path.name)
        if found and found["system"] == _system() and not _is_alive(int(found["process"])):
            with suppress(OSError):  # another process may have deleted it
                path.unlink()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # alive, but another user's
    return True


@cache
def _system() -> str:
    """Return eight hex digits that identify the namespace of process ids: host, boot and, on Linux, container."""
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
        # Given the file itself, numpy bypasses Python's file object and loses the system's error number.
        np.save(SimpleNamespace(write=file.write), np.ascontiguousarray(array), allow_pickle=False)


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with open(regular_file(path), "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def identity_of_files(paths: Sequence[Path], root: Path) -> str:
    """Return 12 hex digits of a hash over the names and full contents of a set of files.

    Note: reads about a gigabyte per second and core; a file is read once per process unless it changes.
    """
    digest = hashlib.sha256(f"{len(paths)};".encode())
    for path, content in zip(paths, content_hashes(paths), strict=True):
        digest.update(f"{path.relative_to(root).as_posix()}:{content};".encode())
    return digest.hexdigest()[:12]


def content_hashes(paths: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of each file, read by one thread per core, up to eight."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(_content_hash, paths))


def _content_hash(path: Path) -> str:
    """Return the SHA-256 of a file, cached in this process until its inode, size, mtime or ctime changes."""
    with disk_errors("read", path):
        state = os.stat(path)
        changed = max(state.st_mtime_ns, state.st_ctime_ns)
        if time.time_ns() - changed < _SETTLED:
            return sha256_file(path)
        return _kept_hash(path, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


@cache
def _kept_hash(path: Path, *state: int) -> str:
    return sha256_file(path)


def sha256_text(text: str) -> str:
    """Return the SHA-256 of a string."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of the names, dtypes, shapes and bytes of ``tensors``; order and device do not matter."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _umask() -> int:
    """Return the process's umask, which mkstemp ignores: colleagues must be able to read the files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
