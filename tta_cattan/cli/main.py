"""The command ``tta-cattan``: a sub-command by its name, the comparison harness otherwise."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from tta_cattan.util.allocator import keep_freed_memory
from tta_cattan.util.errors import UserError
from tta_cattan.util.interrupt import interruptible

# Sub-command -> module with `main(argv) -> int`; imported when it is called.
COMMANDS: dict[str, str] = {
    "extract-features": "tta_cattan.cli.extract_features",
    "fit-source": "tta_cattan.cli.fit_source",
    "host": "tta_cattan.host.launcher",
    "inspect": "tta_cattan.cli.inspect",
    "make-corruptions": "tta_cattan.cli.make_corruptions",
    "pairs": "tta_cattan.cli.pairs",
    "paper": "tta_cattan.cli.paper",
    "report": "tta_cattan.cli.report",
    "train-source": "tta_cattan.cli.train_source",
}
_HARNESS = "tta_cattan.cli.compare"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake is one line and exit code 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    name = _HARNESS
    if argv and argv[0] in COMMANDS:
        name = COMMANDS[argv.pop(0)]
    keep_freed_memory()
    with interruptible() as pressed:
        try:
            return importlib.import_module(name).main(argv)
        except KeyboardInterrupt:
            pass
        except Exception as error:
            # What breaks after Ctrl-C breaks of it: an import half done, a worker process that got the signal too.
            if not pressed.is_set():
                if type(error).__name__ in ("MemoryError", "OutOfMemoryError"):  # Python's and torch's
                    reason = (str(error) or "out of memory").splitlines()[0]
                    error = UserError(f"{reason}: lower TEST.BATCH_SIZE; what is finished is kept")
                if not isinstance(error, (UserError, OSError)):
                    raise
                print(f"error: {error}", file=sys.stderr)
                return 2
    print("interrupted: what is finished is kept; the same command goes on from here", file=sys.stderr)
    return 130


if __name__ == "__main__":
    sys.exit(main())
