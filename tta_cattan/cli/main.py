"""The command ``tta-cattan``: run a sub-command by name; options without a sub-command go to ``compare``."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence

from tta_cattan import __version__
from tta_cattan.util.errors import (
    UserError,
    interruptible,
    is_out_of_memory,
    machine_memory,
    memory_line,
    nearest,
    printable,
)
from tta_cattan.util.memory import keep_freed_memory

# What each command does; its module in this folder has `main(argv) -> int` and is imported when the command is called.
COMMANDS = {
    "compare": "compare adaptation methods on a benchmark",
    "extract-features": "write the features of a frozen encoder, once for all runs",
    "fit-source": "fit the source subspace (or moments) of a model and write it to a file",
    "inspect": "print what a file of fit-source holds",
    "make-corruptions": "corrupt your own images in the layout of ImageNet-C or CIFAR-C",
    "pairs": "adapt between all pairs of domains, beside the published figures",
    "paper": "run a table or figure of the paper",
    "report": "write an HTML page about finished runs",
    "train-source": "train a source model and fit its subspace",
}
_BENCH = ("tqdm", "filelock", "PIL", "sklearn")  # the modules of the extra [bench]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake is one line and exit code 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    keep_freed_memory()
    with interruptible() as pressed:
        try:
            return _run(argv)
        except BrokenPipeError:  # the reader has gone, as in `tta-cattan --help | head -1`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except KeyboardInterrupt:
            pass
        except Exception as error:
            # After Ctrl-C, any error is its consequence: a half-finished import, a worker that got the signal too.
            if not pressed.is_set():
                if is_out_of_memory(error):
                    error = UserError(memory_line(error, machine_memory()))
                if isinstance(error, ModuleNotFoundError) and error.name in _BENCH:
                    error = UserError(f"{error.name} is missing: pip install 'tta-cattan[bench]' for the commands")
                if not isinstance(error, (UserError, OSError)):
                    raise
                print(f"error: {printable(error)}", file=sys.stderr)
                return 2
    print("interrupted: what is finished is kept; run the same command to resume", file=sys.stderr)
    return 130


def _run(argv: list[str]) -> int:
    """Call the command that the first argument names."""
    first = argv[0] if argv else "--help"
    if first in ("help", "-h", "--help"):
        if argv[1:]:
            return _run([*argv[1:], "--help"])
        print(overview())
        return 0
    if first == "--version":
        print(f"tta-cattan {__version__}")
        return 0
    if first in COMMANDS:
        return _call(first, argv[1:])
    if first.endswith((".yaml", ".yml")):
        raise UserError(f"a config file is an option: tta-cattan --cfg {first}")
    if re.fullmatch(r"[\w-]+", first) and first[0].isalpha() and not first.isupper():
        close = nearest(first.lower(), COMMANDS, cutoff=0.5)
        raise UserError(f"unknown command {first!r}.{close} Commands: {', '.join(COMMANDS)}")
    return _call("compare", argv)


def overview() -> str:
    """Return the help of the program: its commands, one line each."""
    lines = [
        "usage: tta-cattan COMMAND [OPTIONS] [KEY VALUE ...]",
        "",
        "Adapt trained classifiers to unlabelled test data, and compare methods that do.",
        "",
        *(f"  {name:18}{does}" for name, does in COMMANDS.items()),
        "",
        "tta-cattan compare                        all methods on the embedded digits, two minutes, with a report",
        "tta-cattan compare --cfg FILE --dry-run   what would run, and how long it would take",
        "tta-cattan COMMAND --help                 the options of a command",
        "tta-cattan --version",
    ]
    return "\n".join(lines)


def _call(command: str, argv: list[str]) -> int:
    return importlib.import_module(f"tta_cattan.cli.{command.replace('-', '_')}").main(argv)


if __name__ == "__main__":
    sys.exit(main())
