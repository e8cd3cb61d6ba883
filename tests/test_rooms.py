"""The house stands as docs/architecture.md says: a lower room never imports a higher one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tta_cattan"
# From the lowest to the highest; rooms on one line do not import each other.
FLOORS = [
    {"__init__", "bench.__init__"},
    {"util"},
    {"losses", "metrics", "network"},
    {"alignment"},
    {"methods"},
    {"monitor"},
    {"config"},
    {"host"},
    {"bench.data", "bench.results", "bench.models"},
    {"bench.protocols", "bench.source"},
    {"bench.run"},
    {"bench.report"},
    {"bench.paper"},
    {"cli"},
    {"__main__"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(module: str) -> str:
    """Return the room of ``tta_cattan.room.file``; the bench's rooms count one by one, the package is the lowest."""
    parts = [*module.split(".")[1:], "__init__"]
    return ".".join(parts[:2]) if parts[0] == "bench" else parts[0]


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
    room = room_of(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
    assert room in FLOOR, f"{room} is a new room: give it a floor here and a line in docs/architecture.md"
    for module in imports(ast.parse(path.read_text(encoding="utf-8"))):
        other = room_of(module)
        assert other == room or FLOOR[other] < FLOOR[room], f"{path} imports {module}"


def test_every_room_is_described():
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES} - {"__init__", "__main__"}
    assert not [room for room in rooms if f"`{room}/`" not in text and f"`{room}.py`" not in text]


def test_every_folder_is_a_package():
    # setuptools finds packages by their __init__.py: a folder without one is missing from the wheel.
    assert not [path.parent for path in FILES if not (path.parent / "__init__.py").is_file()]
