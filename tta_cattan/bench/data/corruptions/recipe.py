"""What a folder of corrupted images was made of and how, so that two recipes never mix in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tta_cattan.util.errors import UserError
from tta_cattan.util.files import disk_errors, evenly, identity_of_files, write_text

RECIPE_FILE = "corruptions.json"


def keep_recipe(out: Path, asked: dict[str, Any], images: Sequence[Path], root: Path, there: Sequence[Path]) -> None:
    """Note in ``out`` how its images are made; refuse a folder that was made otherwise or of other images.

    ``asked`` is what decides the images, by the name of its option; ``images`` are the clean ones under ``root``, of
    which 16 are remembered; ``there`` are files of the folder that would be kept.
    """
    path = out / RECIPE_FILE
    if not path.is_file():
        found = next((file for file in there if file.exists()), None)
        if found is not None:
            raise UserError(
                f"{found} is there and {path} is not, so that nobody knows how it was made: choose another --out, or "
                "remove it"
            )
        known: dict[str, Any] = {}
    else:
        known = _read(path)
        _compare(out, known, asked, root)
    sample = {file.relative_to(root).as_posix(): identity_of_files([file], root) for file in evenly(images, 16)}
    recipe = {**known, **asked, "images": {**sample, **known.get("images", {})}}
    if recipe != known:
        write_text(path, json.dumps(recipe, indent=2, sort_keys=True) + "\n")


def _read(path: Path) -> dict[str, Any]:
    with disk_errors("read", path):
        try:
            recipe = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged ({error}): choose another --out") from None
    if not isinstance(recipe, dict) or not isinstance(recipe.get("images", {}), dict):
        raise UserError(f"{path} is damaged (it is no recipe): choose another --out")
    return recipe


def _compare(out: Path, known: dict[str, Any], asked: dict[str, Any], root: Path) -> None:
    for option, value in asked.items():
        if known.get(option, value) != value:
            raise UserError(
                f"{out} was made with --{option} {known[option]}, and {value} is asked for: choose another --out, or "
                "remove it"
            )
    for name, identity in known.get("images", {}).items():
        # The name comes from a file: nothing outside the folder of the images is opened.
        path = (root / name).resolve()
        inside = path.is_relative_to(root.resolve()) and path.is_file()
        if not inside or identity_of_files([root / name], root) != identity:
            raise UserError(f"{out} was made of other images than {root} (see {name}): choose another --out")
