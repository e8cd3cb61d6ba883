"""The house stands as docs/architecture.md says: a lower room never imports a higher one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tta_cattan"
# From the lowest to the highest; rooms on one line do not import each other.
FLOORS = [
    {"__init__"},
    {"errors", "domain", "interrupt", "allocator"},
    {"registry", "progress", "disk"},
    {"files", "upstream"},
    {"losses", "metrics", "paired", "subspace", "config"},
    {"models", "data", "published"},
    {"methods"},
    {"recovery"},
    {"protocols", "source"},
    {"extraction"},
    {"runs"},
    {"report"},
    {"paper"},
    {"cli", "host"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(module: str) -> str:
    """Return the room of ``tta_cattan.room.file``; the package itself is the lowest."""
    return module.split(".")[1] if "." in module else "__init__"


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def imports(tree: ast.Module):
    """Yield every module of ours that a file imports, at the top or inside a function; not those for type checkers."""
    for node in tree.body:
        if not is_type_checking(node):
            for inner in ast.walk(node):
                if isinstance(inner, ast.ImportFrom) and (inner.module or "").startswith("tta_cattan"):
                    yield inner.module
                elif isinstance(inner, ast.Import):
                    yield from (a.name for a in inner.names if a.name.startswith("tta_cattan"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_go_down(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    room = parts[0]
    assert room in FLOOR, f"{room} is a new room: give it a floor here and a line in docs/architecture.md"
    for module in imports(ast.parse(path.read_text(encoding="utf-8"))):
        other = room_of(module)
        assert other == room or FLOOR[other] < FLOOR[room], f"{path} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_no_file_does_two_jobs(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300


def test_every_room_is_described():
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES} - {"__init__"}
    assert not [room for room in rooms if f"`{room}/`" not in text and f"`{room}.py`" not in text]


def test_every_folder_is_a_package():
    # setuptools finds packages by their __init__.py: a folder without one is missing from the wheel.
    assert not [path.parent for path in FILES if not (path.parent / "__init__.py").is_file()]
