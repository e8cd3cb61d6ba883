"""The one exception that stands for a mistake the user can mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user gave us: the message names the thing, the value and the remedy.

    Note: the command line prints the message alone, without a traceback, and exits with code 2.
    """


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the valid name closest to ``name``, or an empty string."""
    matches = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f" Did you mean {matches[0]!r}?" if matches else ""
