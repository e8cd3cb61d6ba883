"""Lists of images: a path and a label per line, as SHOT's and DomainNet's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tta_cattan.util.errors import UserError

_MOST_BYTES = 100 << 20  # DomainNet's longest list has 6 MB
_MOST_DIGITS = 5  # of a label: 99,999 at most


def read_list(path: Path, bases: Sequence[Path]) -> list[tuple[Path, int]]:
    """Return the (image, label) pairs of a list; its paths are absolute or relative to one of ``bases``.

    Note: of an absolute path of another machine the part from a folder of the first base on is used.
    """
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise UserError(f"{path} has {size:,} bytes, and a list of images has {_MOST_BYTES:,} at most: is it a list?")
    samples: list[tuple[Path, int]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text: a list has a path and a label per line") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.isdecimal() or len(label) > _MOST_DIGITS:
            raise UserError(f"{path}, line {number}: {line[:80]!r} is not a path and a label (a number from 0 on)")
        samples.append((_find(Path(name.strip()), bases, path, number), int(label)))
    if not samples:
        raise UserError(f"{path} is empty: a list has a path and a label per line")
    return samples


def _find(name: Path, bases: Sequence[Path], source: Path, number: int) -> Path:
    """Return where the image of a line lies."""
    tails = [name] if not name.is_absolute() else [Path(*name.parts[i:]) for i in range(1, len(name.parts))]
    if name.is_absolute() and _is_file(name):
        return name
    for base in bases:
        for tail in tails:
            if _is_file(base / tail):
                return base / tail
    raise UserError(
        f"{source}, line {number}: there is no image {name} (looked in {', '.join(map(str, bases))}): get the images "
        "that the list is of"
    )


def _is_file(path: Path) -> bool:
    """Tell whether a file is there; a name that the system does not take is of none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def class_names_of(samples: Sequence[tuple[Path, int]], source: str) -> list[str]:
    """Return the name of each label of a list, the folder of its images; or the label, where all share a folder.

    Note: labels must run from 0 without a gap, and a label's images must lie in one folder.
    """
    folders: dict[int, set[str]] = {}
    for path, label in samples:
        folders.setdefault(label, set()).add(path.parent.name)
    for label in range(max(folders) + 1):
        if label not in folders:
            raise UserError(f"{source}: no image has the label {label}, and the labels go up to {max(folders)}")
    if len(set().union(*folders.values())) == 1 and len(folders) > 1:
        return [str(label) for label in sorted(folders)]
    for label, names in folders.items():
        if len(names) > 1:
            one, other = sorted(names)[:2]
            raise UserError(f"{source}: the label {label} is of images in {one!r} and in {other!r}")
    return [next(iter(folders[label])) for label in sorted(folders)]
