"""What ends a command: a mistake that the user can fix, Ctrl-C, or running out of memory."""

from __future__ import annotations

import difflib
import os
import re
import signal
import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_CUTOFF = 0.75  # similarity of a typo to the name; `eata` and `cotta` are not typos of `cattan`


class UserError(ValueError):
    """A mistake in the user's input; the message names the thing, the value and the remedy, and needs no traceback.

    Note: it is always one line, and control characters in it are escaped so that they cannot affect the terminal.
    """

    def __init__(self, message: object) -> None:
        super().__init__(printable(message))


def printable(text: object) -> str:
    """Return ``text`` with control characters and line breaks escaped, as in ``\\x1b``."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in str(text))


def first_line(error: BaseException, most: int = 120) -> str:
    """Return the first sentence of the first line of an error's message, or its type if the message is empty."""
    said = error.args[0] if isinstance(error, KeyError) and error.args else error
    return (str(said).strip() or type(error).__name__).splitlines()[0].partition(". ")[0][:most]


def nearest(name: str, valid: Iterable[str], cutoff: float = _CUTOFF) -> str:
    """Return ``" Did you mean 'x'?"`` for the valid name closest to ``name``, or an empty string."""
    matches = difflib.get_close_matches(name, list(valid), n=1, cutoff=cutoff)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def chosen(name: str, value: str, options: Collection[str]) -> str:
    """Return ``value`` if it is one of ``options``; otherwise raise a UserError that lists them."""
    if value not in options:
        raise UserError(f"{name} = {value!r}: must be one of {', '.join(options)}.{nearest(str(value), options)}")
    return value


_pressed = threading.Event()  # set by Ctrl-C in the current `interruptible` block


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Let Ctrl-C end the block even if Python drops the first KeyboardInterrupt; yield an event that is set by Ctrl-C.

    Note: Python drops exceptions raised inside ``__del__`` and weak-reference callbacks, which can run at any moment.
    So the key press is remembered, and long loops check for it (`raise_if_interrupted`). A calling program's own SIGINT
    handler is left alone.
    """
    global _pressed
    pressed = _pressed = threading.Event()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield pressed
        return

    def press(signum: int, frame: FrameType | None) -> None:
        pressed.set()
        raise KeyboardInterrupt

    def until_pressed(lost: Any) -> None:
        if not pressed.is_set():  # afterwards it is the interrupt itself or a consequence of it
            hook(lost)

    hook, sys.unraisablehook = sys.unraisablehook, until_pressed
    signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = hook
        _pressed = threading.Event()


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt again if Ctrl-C was pressed and the first one was swallowed."""
    if _pressed.is_set():
        raise KeyboardInterrupt


_UNITS = {"bytes": 1, **{f"{prefix}iB": 1 << 10 * (power + 1) for power, prefix in enumerate("KMGTPE")}}
_ASKED = re.compile(rf"allocate (\d+(?:\.\d*)?) ({'|'.join(_UNITS)})")  # numpy's and torch's wording


def is_out_of_memory(error: Exception) -> bool:
    """Return whether Python, numpy or torch ran out of memory; on the CPU, torch raises a plain RuntimeError."""
    if isinstance(error, UserError):
        return False
    by_name = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return by_name or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))


def memory_line(error: Exception, machine: int | None) -> str:
    """Return the one-line message for an out-of-memory error; ``machine`` is the total memory in bytes, if known."""
    reason = next(iter(str(error).splitlines()), "") or "out of memory"
    asked = _ASKED.search(reason)
    if asked and machine is not None and float(asked[1]) * _UNITS[asked[2]] > machine:
        return (
            f"{reason}: the machine has {machine / 2**30:.0f} GiB, so no batch size helps; a key or a file asks for "
            "too much: check the sizes in the config and the shapes of the data"
        )
    return f"{reason}: lower TEST.BATCH_SIZE; what is finished is kept"


def machine_memory() -> int | None:
    """Return the machine's memory in bytes, or None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
