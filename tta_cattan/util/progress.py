"""Progress bars for anything that takes longer than two seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

from tta_cattan.util.interrupt import raise_if_interrupted

T = TypeVar("T")


class _Bar(tqdm):
    """A bar whose every step is a moment at which Ctrl-C counts."""

    def __iter__(self) -> Iterator[T]:
        for item in super().__iter__():
            raise_if_interrupted()
            yield item

    def update(self, n: float = 1) -> bool | None:
        raise_if_interrupted()
        return super().update(n)


def progress(iterable: Iterable[T] | None, total: int | None = None, desc: str = "") -> tqdm[T]:
    """Iterate with a bar on stderr that appears after two seconds and leaves no trace.

    Note: no bar where stderr is not a terminal, unless the environment has ``TTA_CATTAN_PROGRESS=1``.
    """
    shown = sys.stderr.isatty() or os.environ.get("TTA_CATTAN_PROGRESS") == "1"
    return _Bar(
        iterable,
        total=total,
        desc=desc,
        delay=2,
        file=sys.stderr,
        leave=False,
        dynamic_ncols=True,
        disable=not shown,
    )
