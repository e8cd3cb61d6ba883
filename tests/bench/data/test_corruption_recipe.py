"""``make-corruptions`` never mixes two recipes or two sets of images in one folder."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from tta_cattan.bench.data.corruptions.make import RECIPE_FILE
from tta_cattan.cli.main import main

OPTIONS = {"--corruptions": "contrast", "--severities": "5", "--workers": "1", "--size": "32"}


def write_images(folder, names=("n1/a.png", "n2/b.png"), seed=0):
    rng = np.random.default_rng(seed)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / name)
    return folder


def write_arrays(path, seed=0):
    np.savez(path, x=np.random.default_rng(seed).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8), y=np.arange(3))
    return path


def make(images, out, **changes: str) -> int:
    options = {**OPTIONS, **{f"--{name}": value for name, value in changes.items()}}
    pairs = [part for pair in options.items() for part in pair]
    return main(["make-corruptions", "--images", str(images), "--out", str(out), *pairs])


@pytest.fixture
def images(tmp_path):
    return write_images(tmp_path / "clean")


def state(folder) -> dict[str, tuple[bytes, int]]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in files if p.name != "labels.npy"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": "1"}, "was made with seed 0, and this run has 1: choose another output folder"),
        ({"strengths": "cifar"}, "was made with strengths imagenet, and this run has cifar"),
        ({"size": "48"}, "was made with size 32, and this run has 48"),
    ],
)
def test_another_recipe_is_refused_and_nothing_is_touched(images, tmp_path, capsys, changes, words):
    assert make(images, tmp_path / "out") == 0
    before = state(tmp_path / "out")
    assert make(images, tmp_path / "out", **changes) == 2
    assert words in capsys.readouterr().err
    assert state(tmp_path / "out") == before


def test_other_corruptions_are_added_to_the_same_recipe(images, tmp_path):
    assert make(images, tmp_path / "out") == 0
    assert make(images, tmp_path / "out", corruptions="contrast,frost") == 0
    assert make(images, tmp_path / "out") == 0


def test_images_may_lie_behind_links(images, tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    for folder in images.iterdir():
        (linked / folder.name).symlink_to(folder)
    assert make(linked, tmp_path / "out") == 0
    assert make(linked, tmp_path / "out", corruptions="contrast,frost") == 0


def test_other_images_are_refused_and_more_of_the_same_are_not(tmp_path, capsys):
    images = write_images(tmp_path / "clean")
    assert make(images, tmp_path / "out") == 0
    write_images(images, ["n2/more.png"], seed=2)
    assert make(images, tmp_path / "out") == 0
    assert "1 files made, 2 were there already" in capsys.readouterr().out
    for seed, names in ((5, ("n1/a.png", "n2/b.png")), (0, ("n1/x.png",))):
        other = write_images(tmp_path / f"other{seed}", names, seed)
        assert make(other, tmp_path / "out") == 2
        assert "was made from other images than" in capsys.readouterr().err


def test_other_arrays_or_another_seed_are_refused(tmp_path, capsys):
    assert make(write_arrays(tmp_path / "x.npz"), tmp_path / "out") == 0
    assert make(tmp_path / "x.npz", tmp_path / "out", seed="1") == 2
    assert "was made with seed 0, and this run has 1" in capsys.readouterr().err
    assert make(write_arrays(tmp_path / "x.npz", seed=1), tmp_path / "out") == 2
    assert "was made from other images" in capsys.readouterr().err


def test_a_folder_that_came_without_its_recipe_is_refused(images, tmp_path, capsys):
    assert make(images, tmp_path / "out") == 0
    recipe = tmp_path / "out" / RECIPE_FILE
    for damage in ("{", "[]", '{"images": []}'):
        recipe.write_text(damage)
        assert make(images, tmp_path / "out") == 2
        assert "is not a recipe" in capsys.readouterr().err
    recipe.unlink()
    assert make(images, tmp_path / "out") == 2
    assert "which says how it was made" in capsys.readouterr().err


def test_names_in_a_recipe_open_nothing_outside_the_images(tmp_path, capsys):
    images, secret = write_images(tmp_path / "clean"), tmp_path / "secret.txt"
    secret.write_text("secret")
    assert make(images, tmp_path / "out") == 0
    recipe = tmp_path / "out" / RECIPE_FILE
    for name in ("../secret.txt", str(secret)):
        known = json.loads(recipe.read_text())
        recipe.write_text(json.dumps({**known, "images": {name: "0" * 12}}))
        assert make(images, tmp_path / "out") == 2
        assert "was made from other images" in capsys.readouterr().err
