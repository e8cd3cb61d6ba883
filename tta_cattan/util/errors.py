"""The exception for mistakes that the user can fix."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

_CUTOFF = 0.75  # likeness of a slip of the finger; `eata` and `cotta` are no slips of `cattan`


class UserError(ValueError):
    """A mistake in the user's input; the message names the thing, the value and the remedy, and needs no traceback."""


def nearest(name: str, valid: Iterable[str], cutoff: float = _CUTOFF) -> str:
    """Return ``" Did you mean 'x'?"`` for the valid name closest to ``name``, or an empty string."""
    matches = difflib.get_close_matches(name, list(valid), n=1, cutoff=cutoff)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def chosen(name: str, value: str, options: Collection[str]) -> str:
    """Return ``value`` if it is one of ``options``; otherwise raise a UserError that lists them."""
    if value not in options:
        raise UserError(f"{name} = {value!r}: must be one of {', '.join(options)}.{nearest(str(value), options)}")
    return value
