"""Ctrl-C that is never lost."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_pressed = threading.Event()  # the present block's


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Let Ctrl-C end the block, even where the first KeyboardInterrupt is lost; yield what says that it was pressed.

    Note: Python drops what is raised inside ``__del__`` or the callback of a weak reference, both of which run at any
    moment; so the press is remembered, and long loops look (`raise_if_interrupted`). A program around us that has its
    own way with SIGINT keeps it.
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
    """Raise the KeyboardInterrupt again that something has swallowed."""
    if _pressed.is_set():
        raise KeyboardInterrupt
