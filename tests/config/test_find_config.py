"""Config files by path and by their place in the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from tta_cattan.config import find_config, load_cfg
from tta_cattan.config import load as find
from tta_cattan.util.errors import UserError


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package folder of its own and a working directory elsewhere."""
    folder = tmp_path / "site" / "tta_cattan"
    folder.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(find, "_PACKAGE", folder)
    monkeypatch.chdir(elsewhere)
    return folder


def put(path: Path, text: str = "") -> Path:
    """Write a file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_package_is_the_one_that_is_imported():
    assert (find._PACKAGE / "config" / "load.py").is_file()


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("given", ["cfgs/digits/tent.yaml", "digits/tent.yaml", "./cfgs/digits/tent.yaml"])
def test_a_config_of_the_package_is_found_from_anywhere(package, installed, given):
    root = package if installed else package.parent
    file = put(root / "cfgs" / "digits" / "tent.yaml", "RNG_SEED: 7\n")
    assert find_config(given) == file
    assert load_cfg(given).RNG_SEED == 7


def test_a_file_in_the_working_directory_wins(package):
    put(package / "cfgs" / "tent.yaml")
    put(Path("cfgs/tent.yaml"))
    assert find_config("cfgs/tent.yaml") == Path("cfgs/tent.yaml")


def test_beside_an_installed_package_the_folder_is_someone_elses(package):
    put(package / "cfgs" / "a.yaml")
    put(package.parent / "cfgs" / "b.yaml")
    with pytest.raises(UserError, match=r"^b\.yaml"):
        find_config("b.yaml")


def test_a_missing_file_is_named_with_the_nearest(package):
    for name in ("tent", "tent_plus", "norm", "cattan"):
        put(package / "cfgs" / "digits" / f"{name}.yaml")
    with pytest.raises(UserError, match=r"^cfgs/digits/catan\.yaml: .* Did you mean 'cfgs/digits/cattan\.yaml'\?$"):
        find_config("cfgs/digits/catan.yaml")


def test_a_neighbour_is_suggested_too(package, tmp_path):
    mine = put(tmp_path / "mine" / "run.yaml")
    with pytest.raises(UserError, match=rf"Did you mean '{mine}'\?$"):
        find_config(tmp_path / "mine" / "rum.yaml")


def test_an_absolute_path_is_not_searched_in_the_package(package, tmp_path):
    put(package / "cfgs" / "a.yaml")
    with pytest.raises(UserError, match="no such config file"):
        find_config(tmp_path / "a.yaml")


def test_a_folder_is_refused(package, tmp_path):
    put(tmp_path / "mine" / "run.yml")
    with pytest.raises(UserError, match="mine: is a folder, not a config file"):
        load_cfg(tmp_path / "mine")


def test_without_any_config_the_path_alone_is_named(package):
    with pytest.raises(UserError, match=r"^x\.yaml: there is no such config file\.$"):
        find_config("x.yaml")


def test_a_method_without_a_file_is_told_the_base(package):
    put(package / "cfgs" / "digits" / "base.yaml")
    with pytest.raises(UserError, match=r"\. Give cfgs/digits/base\.yaml MODEL\.ADAPTATION tent$"):
        find_config("cfgs/digits/tent.yaml")
