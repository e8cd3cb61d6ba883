"""Logging in TENT's format, above the progress bars."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

from tta_cattan.util.errors import UserError
from tta_cattan.util.files import disk_errors

_FORMAT = "[%(asctime)s] [%(filename)s: %(lineno)4d]: %(message)s"
_DATE_FORMAT = "%y/%m/%d %H:%M:%S"
_LOGGER = logging.getLogger("tta_cattan")


class _ConsoleHandler(logging.Handler):
    """Prints above the progress bars instead of through them."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except (OSError, ValueError, TypeError, KeyError):  # a bad line must not stop a run
            self.handleError(record)


class _FileHandler(logging.FileHandler):
    """Appends to the log file; a full disk causes one notice, not a traceback per line."""

    _failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        if isinstance(sys.exc_info()[1], OSError):
            if not self._failed:
                tqdm.write(f"cannot write to the log {self.baseFilename!r}: {sys.exc_info()[1]}", file=sys.stderr)
            self._failed = True
        else:
            super().handleError(record)


def setup_logging(folder: str | os.PathLike[str] | None = None, destination: str = "log.txt") -> logging.Logger:
    """Send the package's log lines to the console and, if a folder is given, to a file in it; return the logger.

    Note: lines do not reach the root logger, so that a library that configures it cannot print them a second time.
    """
    handlers: list[logging.Handler] = [_ConsoleHandler()]
    if folder is not None:
        path = Path(folder) / destination
        if path.name != destination:
            raise UserError(f"LOG_DEST = {destination!r}: give the name of a file, which lies in the folder of the run")
        with disk_errors("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handlers.append(_FileHandler(path, mode="a", encoding="utf-8"))
    reset_logging()
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT, _DATE_FORMAT))
        _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False
    return _LOGGER


def reset_logging() -> None:
    """Undo ``setup_logging``: close and remove its handlers, but leave the user's own alone."""
    for handler in list(_LOGGER.handlers):
        if isinstance(handler, (_ConsoleHandler, _FileHandler)):
            _LOGGER.removeHandler(handler)
            with suppress(OSError):  # a full disk refuses the last flush too, and was reported
                handler.close()
    _LOGGER.setLevel(logging.NOTSET)
    _LOGGER.propagate = True


def error_line(label: str, accuracy: float) -> str:
    """Return TENT's line for one domain, ``error % [gaussian_noise5]: 12.34%``, which existing scripts parse."""
    return f"error % [{label}]: {1 - accuracy:.2%}"
