"""Progress bars for loops that take longer than two seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

from tta_cattan.util.interrupt import raise_if_interrupted

T = TypeVar("T")


class _Bar(tqdm):
    """A bar that checks for Ctrl-C at every step."""

    def __iter__(self) -> Iterator[T]:
        for item in super().__iter__():
            raise_if_interrupted()
            yield item

    def update(self, n: float = 1) -> bool | None:
        raise_if_interrupted()
        return super().update(n)


def progress(iterable: Iterable[T] | None, total: int | None = None, desc: str = "") -> tqdm[T]:
    """Iterate with a bar on stderr that appears after two seconds and is erased at the end.

    Note: there is no bar if stderr is not a terminal, unless ``TTA_CATTAN_PROGRESS=1`` is set.
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
