"""DomainNet's layout -> features of a frozen transformer -> source heads -> adaptation -> the table of all pairs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from feature_folders import encoder_weights
from PIL import Image

from tta_cattan.bench.data.features import open_features
from tta_cattan.cli.main import main

timm = pytest.importorskip("timm")
if not timm.list_models("test_vit"):
    pytest.skip("this timm has no test_vit", allow_module_level=True)

CFGS = Path(__file__).parents[3] / "cfgs" / "domainnet_features"
DOMAINS = ("clipart", "real", "sketch")
CLASSES = ("ant", "bee", "cat")
PER_CLASS = 8


@pytest.fixture(autouse=True)
def _clean_up():
    yield
    open_features.cache_clear()


def picture(label: int, domain: int, rng: np.random.Generator) -> Image.Image:
    """Return a small picture: the class is where it is bright, the domain is its colour."""
    pixels = rng.normal(60 + 30 * domain, 20, (48, 40, 3))
    pixels[16 * label : 16 * label + 16] += 90
    pixels[..., domain] += 40
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Three of DomainNet's domains with three classes, as JPEG files in its layout."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for d, domain in enumerate(DOMAINS):
        for label, name in enumerate(CLASSES):
            folder = root / "DomainNet" / domain / name
            folder.mkdir(parents=True)
            for i in range(PER_CLASS):
                picture(label, d, rng).save(folder / f"{domain}_{i:03d}.jpg")
    return root


def extract(data: Path, out: Path, *options: str, seed: int = 1) -> int:
    """Run ``extract-features`` with a small transformer."""
    small = [
        "MODEL.ARCH",
        "timm/test_vit",
        "MODEL.CKPT_PATH",
        encoder_weights("test_vit", seed),
        "DATA.IMAGE_SIZE",
        "160",
        "DATA_DIR",
        str(data),
        "DEVICE",
        "cpu",
    ]
    command = ["extract-features", "--cfg", str(CFGS / "extract.yaml"), "--out", str(out)]
    return main([*command, "--shard-size", "10", "--domains", ",".join(DOMAINS), *options, *small])


@pytest.fixture(scope="module")
def features(tree, tmp_path_factory):
    out = tmp_path_factory.mktemp("features")
    assert extract(tree, out) == 0
    return out


def test_every_domain_has_its_features_and_classes(features):
    assert sorted(path.name for path in features.iterdir()) == sorted(DOMAINS)
    for domain in DOMAINS:
        told = json.loads((features / domain / "manifest.json").read_text())
        assert told["classes"] == list(CLASSES) and told["n"] == 24
        assert open_features(features / domain).labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8


def test_all_pairs_with_one_command(features, tmp_path, capsys):
    command = ["pairs", "--cfg", str(CFGS / "cattan.yaml"), "--methods", "source,norm,tent,tent_plus,shot,ip,cattan"]
    values = {
        "DATA_DIR": features,
        "DATA.DOMAINS": ",".join(DOMAINS),
        "MODEL.IN_FEATURES": 64,
        "MODEL.WIDTH": 16,
        "SOURCE.EPOCHS": 20,
        "SOURCE.BATCH_SIZE": 8,
        "TEST.EPOCHS": 1,
        "TEST.BATCH_SIZE": 12,
        "CATTAN.D": 4,
        "SEEDS": 0,
        "DEVICE": "cpu",
        "CKPT_DIR": tmp_path / "ckpt",
        "SAVE_DIR": tmp_path / "out",
    }
    assert main([*command, *(str(part) for pair in values.items() for part in pair)]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = ["C>R", "C>S", "R>C", "R>S", "S>C", "S>R"]
    assert lines[0].split()[:7] == ["method", *heads]
    rows = {line.split()[0]: line.split()[1:7] for line in lines[1:8]}
    assert set(rows.pop("ip")) == {"-"}, "IP needs images"
    assert rows.keys() == {"source", "norm", "tent", "tent_plus", "shot", "cattan"}
    for method, row in rows.items():
        assert all(0 <= float(value) <= 100 for value in row), method
    assert np.mean([float(value) for value in rows["source"]]) > 60, "the heads have learnt the classes"


def test_one_missing_class_is_an_error_before_anything_is_written(tree, tmp_path, capsys):
    (tree / "DomainNet" / "sketch" / "dog").mkdir()
    picture(0, 0, np.random.default_rng(0)).save(tree / "DomainNet" / "sketch" / "dog" / "1.jpg")
    try:
        assert extract(tree, tmp_path / "out") == 2
    finally:
        (tree / "DomainNet" / "sketch" / "dog" / "1.jpg").unlink()
        (tree / "DomainNet" / "sketch" / "dog").rmdir()
    assert "the class 'dog' is in sketch and not in clipart" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_broken_picture_is_named_and_skipped_only_when_allowed(tree, tmp_path, capsys):
    path = tree / "DomainNet" / "real" / "bee" / "real_003.jpg"
    content = path.read_bytes()
    path.write_bytes(content[:100])
    try:
        assert extract(tree, tmp_path / "strict") == 2
        assert f"image {path} cannot be read" in capsys.readouterr().err
        assert extract(tree, tmp_path / "out", "DATA.SKIP_CORRUPT", "True") == 0
        assert "1 of 24 images are corrupt and left out" in capsys.readouterr().err
    finally:
        path.write_bytes(content)
    assert len(open_features(tmp_path / "out" / "real").labels) == 23


def test_features_of_two_encoders_do_not_make_a_pair(features, tree, tmp_path, capsys):
    assert extract(tree, tmp_path, seed=5) == 0
    (tmp_path / "clipart").rename(tmp_path / "away")
    (tmp_path / "clipart").symlink_to(features / "clipart")
    values = ["DATA_DIR", str(tmp_path), "DATA.DOMAINS", "clipart,real", "MODEL.IN_FEATURES", "64", "DEVICE", "cpu"]
    assert main(["pairs", "--cfg", str(CFGS / "base.yaml"), *values]) == 2
    assert "encoder.sha256 differs between clipart and real" in capsys.readouterr().err
