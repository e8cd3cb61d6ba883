"""Progress of loops that take longer than two seconds: a bar on a terminal, otherwise a line a minute."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

from tta_cattan.util.errors import raise_if_interrupted

T = TypeVar("T")
_LINE_EVERY = 60.0  # seconds between two lines where there is no terminal
_tell: Callable[[float, str], None] | None = None  # set if this process works for another one
_last: _Bar | None = None


def relay_progress(tell: Callable[[float, str], None]) -> None:
    """Relay progress to another process once a second instead of showing it: the fraction done and the bar's name."""
    global _tell
    _tell = tell


def show_running(parts: Iterable[tuple[float, str]]) -> None:
    """Add other processes' progress to the last bar: the sum of their fractions done, and the name of the first."""
    found = list(parts)
    if _last is not None:
        _last.running = sum(part for part, _ in found)
        _last.set_postfix_str(found[0][1] if found else "", refresh=False)
        _last.refresh()


class _Bar(tqdm):
    """A bar that checks for Ctrl-C at every step."""

    running = 0.0  # steps' worth of unfinished work in other processes

    @property
    def format_dict(self) -> dict[str, Any]:
        shown = super().format_dict
        return {**shown, "n": round(shown["n"] + self.running, 1)} if self.running else shown

    def __iter__(self) -> Iterator[T]:
        for item in super().__iter__():
            raise_if_interrupted()
            yield item

    def update(self, n: float = 1) -> bool | None:
        raise_if_interrupted()
        return super().update(n)


class _Quiet(_Bar):
    """A bar that draws nothing."""

    disable: bool

    def clear(self, nolock: bool = False) -> None:
        """Do nothing: there is nothing to erase."""

    def close(self) -> None:
        """Close without tqdm's carriage return."""
        if not self.disable:
            self.disable = True
            self._decr_instances(self)


class _Lines(_Quiet):
    """A bar that prints a new line once a minute instead of redrawing itself."""

    def __init__(self, *args: object, **options: object) -> None:
        self._next_line = time.monotonic() + _LINE_EVERY
        super().__init__(*args, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if time.monotonic() >= self._next_line and self.n != self.total:
            self._next_line = time.monotonic() + _LINE_EVERY
            print(str(self), file=sys.stderr, flush=True)


class _Relay(_Quiet):
    """A bar that another process shows."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        name = self.desc.removesuffix(": ")
        if _tell is not None:
            _tell(self.n / self.total if self.total else 0.0, f"{name}, {self.postfix}" if self.postfix else name)


def progress(iterable: Iterable[T] | None, total: int | None = None, desc: str = "") -> tqdm[T]:
    """Iterate, showing the count, the total and the time left on stderr.

    On a terminal a bar appears after two seconds and is erased at the end; elsewhere a line is printed once a minute.
    ``TTA_CATTAN_PROGRESS=1`` forces the bar, ``=0`` shows nothing.
    """
    global _last
    wish = os.environ.get("TTA_CATTAN_PROGRESS")
    kind = _Relay if _tell else _Bar if wish == "1" or sys.stderr.isatty() else _Lines
    _last = kind(
        iterable,
        total=total,
        desc=desc,
        delay=2,
        file=sys.stderr,
        leave=False,
        dynamic_ncols=kind is _Bar,
        ncols=None if kind is _Bar else 140,
        mininterval=0.1 if kind is _Bar else 1.0,
        disable=wish == "0",
    )
    return _last
