"""Progress of loops that take longer than two seconds: a bar on a terminal, otherwise a line a minute."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

from tta_cattan.util.errors import raise_if_interrupted

T = TypeVar("T")
_LINE_EVERY = 60.0  # seconds between two lines where there is no terminal
_hidden = False


def hide_progress() -> None:
    """Show no progress in this process: it works for another one that does."""
    global _hidden
    _hidden = True


class _Bar(tqdm):
    """A bar that checks for Ctrl-C at every step."""

    def __iter__(self) -> Iterator[T]:
        for item in super().__iter__():
            raise_if_interrupted()
            yield item

    def update(self, n: float = 1) -> bool | None:
        raise_if_interrupted()
        return super().update(n)


class _Lines(_Bar):
    """A bar that prints a line of its own once a minute instead of redrawing itself."""

    def __init__(self, *args: object, **options: object) -> None:
        self._next_line = time.monotonic() + _LINE_EVERY
        super().__init__(*args, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if time.monotonic() >= self._next_line and self.n != self.total:
            self._next_line = time.monotonic() + _LINE_EVERY
            print(str(self), file=sys.stderr, flush=True)

    def clear(self, nolock: bool = False) -> None:
        """There is nothing to erase."""

    disable: bool

    def close(self) -> None:
        """End without tqdm's carriage return."""
        if not self.disable:
            self.disable = True
            self._decr_instances(self)


def progress(iterable: Iterable[T] | None, total: int | None = None, desc: str = "") -> tqdm[T]:
    """Iterate with the count, the total and the time left on stderr.

    On a terminal a bar appears after two seconds and is erased at the end. Elsewhere there is a line a minute;
    ``TTA_CATTAN_PROGRESS=1`` asks for the bar, ``=0`` for nothing.
    """
    wish = os.environ.get("TTA_CATTAN_PROGRESS")
    kind = _Bar if wish == "1" or sys.stderr.isatty() else _Lines
    return kind(
        iterable,
        total=total,
        desc=desc,
        delay=2,
        file=sys.stderr,
        leave=False,
        dynamic_ncols=kind is _Bar,
        ncols=None if kind is _Bar else 100,
        mininterval=0.1 if kind is _Bar else 1.0,
        disable=_hidden or wish == "0",
    )
