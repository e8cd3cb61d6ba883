"""Options and ``KEY VALUE`` overrides on one command line, in any order."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from tta_cattan.util.errors import UserError, nearest
from tta_cattan.util.registry import load_plugins

_KEY = re.compile(r"[A-Z][A-Z0-9_]*|\w+(\.\w+)+")  # a misspelt key of a node counts: the config names the nearest


class CommandParser(argparse.ArgumentParser):
    """A parser that raises a UserError for a mistake."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")


class ConfigParser(CommandParser):
    """The parser of a command that loads a config: it takes overrides and modules that register methods."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_argument(
            "--import",
            dest="modules",
            metavar="MODULE",
            action="append",
            default=[],
            help="import a module first, e.g. one that registers a method; may be repeated",
        )

    def parse(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the options and the overrides, with all plug-ins loaded; refuse an unknown option."""
        args, rest = self.parse_known_args(argv)
        options = [option for action in self._actions for option in action.option_strings]
        for argument in rest:
            if argument.startswith("--"):
                raise UserError(f"unknown option {argument!r}.{nearest(argument, options)} See --help")
        overrides = _pairs(rest)
        load_plugins(args.modules)
        return args, overrides


def _pairs(arguments: Sequence[str]) -> list[str]:
    """Return keys and values in turn; ``KEY=VALUE`` is such a pair too."""
    pairs: list[str] = []
    for argument in arguments:
        if len(pairs) % 2:
            pairs.append(argument)
            continue
        key, equals, value = argument.partition("=")
        if not _KEY.fullmatch(key):
            raise UserError(f"unexpected argument {argument!r}: neither an option nor a pair KEY VALUE. See --help")
        pairs += [key, value] if equals else [key]
    if len(pairs) % 2:
        raise UserError(f"{pairs[-1]} has no value: give {pairs[-1]} VALUE or {pairs[-1]}=VALUE")
    return pairs


def method_names(given: str | None, overrides: Sequence[str]) -> list[str]:
    """Return the names in ``--methods A,B,C``; none if it is not given."""
    names = given.split(",") if given is not None else []
    if not all(names):
        raise UserError(f"--methods {given!r}: give names separated by commas, e.g. tent,cattan")
    if names and "MODEL.ADAPTATION" in overrides[::2]:
        raise UserError(f"--methods {given} and MODEL.ADAPTATION both name methods: give one of them")
    return names
