"""``KEY VALUE`` pairs at the end of a command line that the host's own parser would refuse."""

from __future__ import annotations

import re

from tta_cattan.util.errors import UserError

_KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z][A-Z0-9_]*)*")


def split_overrides(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the host's arguments and the trailing ``CATTAN.D 256 ...``; a host's own options begin with a dash."""
    for place, argument in enumerate(arguments):
        follows_option = place > 0 and arguments[place - 1].startswith("--") and "=" not in arguments[place - 1]
        if _KEY.fullmatch(argument) and not follows_option:
            pairs = arguments[place:]
            if len(pairs) % 2:
                raise UserError(f"{' '.join(pairs)}: must be pairs KEY VALUE; a key or a value is missing")
            return arguments[:place], pairs
    return arguments, []
