"""Options and ``KEY VALUE`` overrides on one command line, in any order."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from tta_cattan.util.errors import UserError, nearest


class CommandParser(argparse.ArgumentParser):
    """A parser for which a mistake is a UserError like any other: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")


def parse_with_overrides(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options and the rest, which are overrides; an unknown option is refused with the nearest one."""
    args, rest = parser.parse_known_args(argv)
    options = [option for action in parser._actions for option in action.option_strings]
    for argument in rest:
        if argument.startswith("--"):
            raise UserError(f"unknown option {argument!r}.{nearest(argument, options)} See --help")
    return args, rest


def method_names(given: str | None) -> list[str]:
    """Return the names in ``--methods A,B,C``; none where it is not given."""
    names = given.split(",") if given is not None else []
    if not all(names):
        raise UserError(f"--methods {given!r}: give names separated by commas, e.g. tent,cattan")
    return names
