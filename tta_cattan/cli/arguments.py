"""How commands declare their options; options and ``KEY VALUE`` overrides may come in any order."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from tta_cattan.util.errors import UserError, nearest
from tta_cattan.util.registry import load_plugins

_KEY = re.compile(r"[A-Z][A-Z0-9_]*|\w+(\.\w+)+")  # a misspelt dotted key matches too: the config suggests the nearest


def option(name: str, about: str, metavar: str | None = None, **more: Any) -> tuple[str, dict[str, Any]]:
    """Return the declaration of an option, or of a positional argument; without a ``metavar`` it is a flag."""
    kind: dict[str, Any] = {"metavar": metavar} if metavar else {} if "choices" in more else {"action": "store_true"}
    return name, {"help": about, **kind, **more}


def config_file(example: str, required: bool = True) -> tuple[str, dict[str, Any]]:
    """Return the option that names the config."""
    return option("--cfg", f"config file, e.g. {example}", "FILE", required=required)


METHODS = option("--methods", "methods to compare, each with its own config beside FILE", "A,B,C")
DRY_RUN = option("--dry-run", "check everything, and print what would run and for how long")
_IMPORT = option(
    "--import",
    "import a module first, e.g. one that registers a method; may be repeated",
    "MODULE",
    dest="modules",
    action="append",
    default=[],
)


class CommandParser(argparse.ArgumentParser):
    """The parser of a command; it reports mistakes as UserErrors."""

    def __init__(self, command: str, about: str, *options: tuple[str, dict[str, Any]], usage: str = "") -> None:
        super().__init__(prog=f"tta-cattan {command}", description=about, usage=f"%(prog)s {usage}" if usage else None)
        for name, declared in options:
            self.add_argument(name, **declared)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")


class ConfigParser(CommandParser):
    """The parser of a command that loads a config: it takes overrides and modules that register methods."""

    def __init__(self, command: str, about: str, *options: tuple[str, dict[str, Any]], usage: str) -> None:
        super().__init__(command, about, *options, _IMPORT, usage=f"{usage} [KEY VALUE ...]")

    def parse(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the options and the overrides, and load all plug-ins; refuse an unknown option."""
        args, rest = self.parse_known_args(argv)
        options = [option for action in self._actions for option in action.option_strings]
        for argument in rest:
            if argument.startswith("--"):
                raise UserError(f"unknown option {argument!r}.{nearest(argument, options)} See `{self.prog} --help`")
        overrides = _pairs(rest)
        load_plugins(args.modules)
        return args, overrides


def _pairs(arguments: Sequence[str]) -> list[str]:
    """Return keys and values alternately; ``KEY=VALUE`` counts as a pair too."""
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
