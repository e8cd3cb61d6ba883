"""Ctrl-C that is never lost."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_pressed = threading.Event()  # of the current block


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

    def without_interrupts(lost: Any) -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            hook(lost)

    hook, sys.unraisablehook = sys.unraisablehook, without_interrupts
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
