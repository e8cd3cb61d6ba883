"""Libraries that do not import as released: what is healed, and what is said."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from tta_cattan.util import upstream
from tta_cattan.util.errors import UserError


@pytest.fixture
def modules(monkeypatch):
    """Forget ``autoattack``; what a test imports is forgotten again."""
    kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "autoattack"}
    for name in kept:
        del sys.modules[name]
    yield sys.modules
    for name in [name for name in sys.modules if name.split(".")[0] == "autoattack"]:
        del sys.modules[name]
    sys.modules.update(kept)


def installed(monkeypatch, *names: str) -> list[str]:
    """Let only ``names`` of the two be found; return the list of what is imported under the other name."""
    imported = []

    def load(name: str) -> ModuleType:
        imported.append(name)
        return ModuleType(name)

    monkeypatch.setattr(upstream, "find_spec", lambda name: ModuleSpec(name, None) if name in names else None)
    monkeypatch.setattr(upstream.importlib, "import_module", load)
    return imported


def test_the_alias_is_made_once_where_only_pyautoattack_is_there(modules, monkeypatch):
    imported = installed(monkeypatch, "pyautoattack")
    upstream.heal_autoattack()
    assert modules["autoattack"].__name__ == "pyautoattack"
    assert modules["autoattack.state"].__name__ == "pyautoattack.state"
    upstream.heal_autoattack()
    assert imported == ["pyautoattack", "pyautoattack.state"]


@pytest.mark.parametrize("names", [("autoattack",), ("autoattack", "pyautoattack"), ()])
def test_nothing_is_done_where_upstream_is_whole_or_absent(modules, monkeypatch, names):
    imported = installed(monkeypatch, *names)
    upstream.heal_autoattack()
    assert imported == [] and "autoattack" not in modules


def test_a_module_that_is_loaded_already_is_left_alone(modules, monkeypatch):
    mine = modules["autoattack"] = ModuleType("autoattack")
    imported = installed(monkeypatch, "pyautoattack")
    upstream.heal_autoattack()
    assert modules["autoattack"] is mine and imported == []


def failing(monkeypatch, broken: str, error: Exception) -> None:
    real = importlib.import_module

    def load(name: str, *args: object) -> ModuleType:
        if name.split(".")[0] == broken:
            raise error
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", load)


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        ("robustbench", "pip install 'tta-cattan[robustbench]'"),
        ("pkg_resources", "pip install 'setuptools<81'"),
        ("gdown", "pip install 'tta-cattan[robustbench]'"),
    ],
)
def test_what_robustbench_lacks_is_said_with_the_remedy(monkeypatch, missing, remedy):
    pytest.importorskip("torchvision")
    error = ModuleNotFoundError(f"No module named {missing!r}", name=missing)
    failing(monkeypatch, "robustbench", error)
    with pytest.raises(UserError) as caught:
        upstream.import_robustbench("robustbench.data")
    assert f"{missing!r} is missing" in str(caught.value) and remedy in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("operator torchvision::nms does not exist\nmore lines"),
        ImportError("undefined symbol: _ZN2at4_ops"),
        OSError("libcudart.so.11.0: cannot open shared object file"),
    ],
)
def test_a_torchvision_of_another_torch_is_named(monkeypatch, error):
    failing(monkeypatch, "torchvision", error)
    for attempt in (lambda: upstream.import_torchvision("torchvision.models"), upstream.import_robustbench):
        with pytest.raises(UserError) as caught:
            attempt()
        message = str(caught.value)
        assert "torch " in message and "do not work together" in message and "\n" not in message
        assert f"({str(error).splitlines()[0]})" in message and "--force-reinstall torch torchvision" in message


def test_robustbench_as_it_is_installed_here_imports():
    pytest.importorskip("torchvision")
    if importlib.util.find_spec("robustbench") is None:
        pytest.skip("RobustBench is not installed")
    data = upstream.import_robustbench("robustbench.data")
    assert callable(data.load_cifar10c) and upstream.import_robustbench("robustbench.data") is data
