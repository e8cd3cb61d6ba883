"""Methods from outside the package: by a module's name, and by entry point."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

import pytest
from digits_runs import compare, read_cells

from tta_cattan import ADAPTATION_REGISTRY
from tta_cattan.cli.main import main
from tta_cattan.util import registry

METHOD = """
from tta_cattan import ADAPTATION_REGISTRY, AdaptationMethod


@ADAPTATION_REGISTRY.register("sharpen")
class Sharpen(AdaptationMethod):
    def loss(self, logits):
        return -logits.softmax(1).square().sum(1).mean()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the current folder of a user; what is imported from it and registered is forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_imported", [])
    monkeypatch.setattr(ADAPTATION_REGISTRY, "_entries", dict(ADAPTATION_REGISTRY._entries))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_a_method_in_the_current_folder_runs(folder, capsys):
    (folder / "sharpen_plugin.py").write_text(METHOD)
    assert main(compare(folder / "save", "tent,sharpen", "--import", "sharpen_plugin")) == 0
    assert {cell[0] for cell in read_cells(folder / "save")} == {"tent", "sharpen"}
    assert registry.imported_modules() == ["sharpen_plugin"]
    capsys.readouterr()
    assert main(["--list", "--import", "sharpen_plugin"]) == 0
    assert "sharpen" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit('stop')", "SystemExit: stop"),
        (METHOD.replace("sharpen", "tent"), "'tent' is already registered"),
    ],
)
def test_a_failing_import_is_one_line_that_names_the_module(folder, capsys, content, said):
    (folder / "broken_plugin.py").write_text(content)
    assert main(["--import", "broken_plugin", "--dry-run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: cannot import broken_plugin: ") and said in line


def test_installed_plugins_load_without_being_named(folder, monkeypatch):
    (folder / "installed_plugin.py").write_text(METHOD)
    metadata = folder / "installed_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[tta_cattan.methods]\nsharpen = installed_plugin\n")
    with pytest.raises(PackageNotFoundError):
        version("installed-plugin")
    monkeypatch.syspath_prepend(str(folder))
    registry.load_plugins()
    assert "sharpen" in ADAPTATION_REGISTRY
    (folder / "installed_plugin.py").write_text("1 / 0")
    del sys.modules["installed_plugin"]
    with pytest.raises(ValueError, match=r"cannot import installed_plugin \(entry point 'sharpen' .*ZeroDivisionError"):
        registry.load_plugins()
