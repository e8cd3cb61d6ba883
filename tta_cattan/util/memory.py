"""What to say when memory runs out: a batch that is too large, or a size that no machine has."""

from __future__ import annotations

import os
import re

from tta_cattan.util.errors import UserError

_UNITS = {"bytes": 1, **{f"{prefix}iB": 1 << 10 * (power + 1) for power, prefix in enumerate("KMGTPE")}}
_ASKED = re.compile(rf"allocate (\d+(?:\.\d*)?) ({'|'.join(_UNITS)})")  # numpy's words, and torch's


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether Python, numpy or torch ran out of memory; torch's error on the CPU is a RuntimeError."""
    if isinstance(error, UserError):
        return False
    by_name = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return by_name or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))


def memory_line(error: Exception, machine: int | None) -> str:
    """Return the line for the user; ``machine`` is its memory in bytes, None where it is unknown."""
    reason = next(iter(str(error).splitlines()), "") or "out of memory"
    asked = _ASKED.search(reason)
    if asked and machine is not None and float(asked[1]) * _UNITS[asked[2]] > machine:
        return (
            f"{reason}: the machine has {machine / 2**30:.0f} GiB, so no batch size helps; a key or a file asks for "
            "too much: check the sizes in the config and the shapes of the data"
        )
    return f"{reason}: lower TEST.BATCH_SIZE; what is finished is kept"


def machine_memory() -> int | None:
    """Return the machine's memory in bytes, or None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
