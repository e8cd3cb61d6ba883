"""Configuration files by path, or by their place among those that come with the package."""

from __future__ import annotations

import os
from difflib import SequenceMatcher
from pathlib import Path

from tta_cattan.util.errors import UserError

_FOLDER = "cfgs"
_PACKAGE = Path(__file__).parent.parent
_SHOWN = 3


def find_config(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` if it is a file, otherwise the file of that relative path below the package's ``cfgs``."""
    given = Path(path)
    if given.is_file():
        return given
    shipped = shipped_folder()
    inside = Path(*given.parts[1:]) if given.parts[:1] == (_FOLDER,) else given
    if (shipped / inside).is_file():
        return shipped / inside
    problem = "is a folder, not a config file" if given.is_dir() else "there is no such config file"
    close = _nearest_files(given, shipped)
    raise UserError(f"{given}: {problem}." + (f" Nearest: {', '.join(close)}" if close else ""))


def shipped_folder() -> Path:
    """Return the folder of the package's own configs: inside it when installed, beside it in a checkout.

    Note: the one beside is the second choice, because beside an installed package it would belong to someone else.
    """
    installed = _PACKAGE / _FOLDER
    return installed if installed.is_dir() else _PACKAGE.parent / _FOLDER


def _nearest_files(given: Path, shipped: Path) -> list[str]:
    """Return the existing config files most like ``given``: its neighbours and those that come with the package."""
    beside = given if given.is_dir() else given.parent
    names = {str(file) for file in beside.glob("*.y*ml")} if beside.is_dir() else set()
    names |= {str(Path(_FOLDER) / file.relative_to(shipped)) for file in shipped.rglob("*.y*ml")}

    def likeness(name: str) -> float:
        whole = SequenceMatcher(None, str(given), name).ratio()
        return max(whole, SequenceMatcher(None, given.name, Path(name).name).ratio())

    return sorted(names, key=lambda name: (-likeness(name), name))[:_SHOWN]
