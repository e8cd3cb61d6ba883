"""Disk faults told as mistakes that the user can mend."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from tta_cattan.errors import UserError

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
    """Turn an ``OSError`` inside the block into a UserError that says what could not be read or written, and why."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "check the path and the disk")
        raise UserError(f"cannot {verb} {os.fspath(path)!r}: {error.strerror or error}; {remedy}") from error
