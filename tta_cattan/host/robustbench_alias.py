"""RobustBench imports ``autoattack``, which its own requirements install under another name."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys

logger = logging.getLogger(__name__)


def alias_autoattack() -> bool:
    """Let ``import autoattack`` find ``pyautoattack`` (the same code) where only that is installed.

    Note: without it ``import robustbench`` fails in every host, with or without us; an installed autoattack wins.
    """
    if importlib.util.find_spec("autoattack") or not importlib.util.find_spec("pyautoattack"):
        return False
    for name in ("", ".state"):
        try:
            sys.modules[f"autoattack{name}"] = importlib.import_module(f"pyautoattack{name}")
        except ImportError as error:
            logger.warning("pyautoattack%s cannot stand in for autoattack: %s", name, error)
    return True
