"""The exception for mistakes that the user can fix."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

_CUTOFF = 0.75  # likeness of a slip of the finger; `eata` and `cotta` are no slips of `cattan`


class UserError(ValueError):
    """A mistake in the user's input; the message names the thing, the value and the remedy, and needs no traceback.

    Note: it is always one line, and what it quotes from a file does not steer the terminal.
    """

    def __init__(self, message: object) -> None:
        super().__init__(printable(message))


def printable(text: object) -> str:
    """Return ``text`` with control characters and line ends as ``\\x1b``."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in str(text))


def first_line(error: BaseException, most: int = 120) -> str:
    """Return the first sentence of an error's message on its first line, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0][:most]


def nearest(name: str, valid: Iterable[str], cutoff: float = _CUTOFF) -> str:
    """Return ``" Did you mean 'x'?"`` for the valid name closest to ``name``, or an empty string."""
    matches = difflib.get_close_matches(name, list(valid), n=1, cutoff=cutoff)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def chosen(name: str, value: str, options: Collection[str]) -> str:
    """Return ``value`` if it is one of ``options``; otherwise raise a UserError that lists them."""
    if value not in options:
        raise UserError(f"{name} = {value!r}: must be one of {', '.join(options)}.{nearest(str(value), options)}")
    return value
