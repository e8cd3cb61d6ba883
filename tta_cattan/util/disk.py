"""Disk faults told as mistakes that the user can mend."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from tta_cattan.util.errors import UserError

_REMEDIES = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        "free some space and run the same command again (what is finished is kept)",
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "choose a folder that you may read and write (SAVE_DIR), or change its permissions",
    ),
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EEXIST, errno.EISDIR),
        "a file stands where a folder should be, or the reverse: move it away or choose another folder (SAVE_DIR)",
    ),
}


@contextmanager
def disk_errors(verb: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a disk fault inside the block into a UserError that says what could not be read or written, and why."""
    try:
        yield
    except Exception as error:
        number = _number(error)
        if number is None:
            raise
        remedy = _REMEDIES.get(number, "check the path and the disk")
        problem = os.strerror(number) if number else str(error)
        raise UserError(f"cannot {verb} {os.fspath(path)!r}: {problem}; {remedy}") from error


def _number(error: Exception) -> int | None:
    """Return the number of the system's error (0 where it has none), or None for an error of another kind."""
    if isinstance(error, OSError):
        return error.errno or 0
    # safetensors tells it in words only: "I/O error: No space left on device (os error 28)".
    said = re.search(r"\(os error (\d+)\)", str(error)) if type(error).__name__ == "SafetensorError" else None
    return int(said.group(1)) if said else None
