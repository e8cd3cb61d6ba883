"""PointDA-10 is read as its public layout has it, and what is wrong with it is named."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from cloud_trees import write_folders, write_scannet

from tta_cattan.bench import Domain
from tta_cattan.bench.data import BENCHMARK_REGISTRY
from tta_cattan.bench.data.datasets import per_class
from tta_cattan.bench.data.pointda10 import CLASSES, load_part, part_hash
from tta_cattan.config import load_cfg
from tta_cattan.util.errors import UserError


def benchmark(root, source="modelnet", target="shapenet", **keys):
    load_part.cache_clear()
    part_hash.cache_clear()
    values = {"DATA_DIR": root, "DATA.SOURCE": source, "DATA.TARGET": target, "DATA.POINTS": 64, **keys}
    overrides = [part for pair in values.items() for part in pair]
    return BENCHMARK_REGISTRY.get("pointda10")(load_cfg("cfgs/pointda10/base.yaml", list(map(str, overrides))))


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for domain in ("modelnet", "shapenet"):
        write_folders(root, domain)
    write_scannet(root)
    return root


@pytest.fixture
def modelnet(tmp_path):
    write_folders(tmp_path, "modelnet", per_class=1)
    write_folders(tmp_path, "shapenet", per_class=1)
    return tmp_path / "PointDA_data" / "modelnet"


def test_every_class_and_part_is_read(tree):
    data = benchmark(tree)
    data.check()
    clouds, labels = data.target(Domain("shapenet")).tensors
    assert clouds.shape == (40, 3, 64) and clouds.dtype == torch.float32
    assert torch.bincount(labels).tolist() == [4] * 10
    assert data.source().tensors[0].shape == (20, 3, 64)
    assert not data.images and data.num_classes == 10
    for part in ("train", "test"):
        assert len(benchmark(tree, **{"DATA.TARGET_PART": part}).target(Domain("shapenet"))) == 20


def test_a_cloud_is_the_first_points_of_its_file_in_the_unit_sphere(tree):
    points = np.load(tree / "PointDA_data/modelnet/bed/train/bed_0001.npy")[:64]
    points = points - points.mean(0)
    expected = points / np.sqrt((points**2).sum(1)).max()
    found = benchmark(tree).source().tensors[0][3]
    np.testing.assert_allclose(found.T, expected, atol=1e-6)


def test_scannet_is_read_without_its_colours(tree):
    import h5py

    with h5py.File(tree / "PointDA_data/scannet/test_0.h5") as file:
        points, label = file["data"][5, :64, :3], file["label"][5]
    data = benchmark(tree, target="scannet", **{"DATA.TARGET_PART": "test", "DATA.UPRIGHT": False})
    clouds, labels = data.target(Domain("scannet")).tensors
    points = points - points.mean(0)
    np.testing.assert_allclose(clouds[5].T, points / np.linalg.norm(points, axis=1).max(), atol=1e-6)
    assert labels[5] == label == 2


@pytest.mark.parametrize("domain", ["modelnet", "shapenet", "scannet"])
def test_the_z_axis_is_up_in_every_domain(tree, domain):
    as_is = benchmark(tree, target=domain, **{"DATA.UPRIGHT": False}).target(Domain(domain)).tensors[0]
    upright, labels = benchmark(tree, target=domain).target(Domain(domain)).tensors
    x, y, z = as_is.unbind(1)
    lying = torch.stack([x, -z, y], 1)
    for cloud, same, down, label in zip(upright, as_is, lying, labels.tolist(), strict=True):
        stays = domain == "modelnet" or (domain == "shapenet" and CLASSES[label] == "plant")
        torch.testing.assert_close(cloud, same if stays else down, atol=1e-6, rtol=0)


def test_training_turns_clouds_about_z_and_jitters_them(tree):
    torch.manual_seed(0)
    data = benchmark(tree)
    clouds = data.source().tensors[0]
    moved = data.augment(clouds)
    assert (moved[:, 2] - clouds[:, 2]).abs().max() <= 0.05 + 1e-6, "up stays up, but for the jitter"
    assert (moved[:, :2] - clouds[:, :2]).abs().amax((1, 2)).median() > 0.5
    assert torch.equal(clouds, data.source().tensors[0]), "the data itself stays as it is"


def test_fewer_samples_are_still_of_all_classes(tree):
    data = benchmark(tree, **{"CORRUPTION.NUM_EX": 10, "DATA.TARGET_PART": "test"})
    labels = data.target(Domain("shapenet")).tensors[1]
    assert len(labels) == 10 and labels.unique().numel() == 10
    assert len(per_class(data.source(), 1, 0)) == 10


def test_no_target_is_every_other_domain(tree):
    data = benchmark(tree, source="ShapeNet", target="")
    data.check()
    assert [domain.name for domain in data.domains()] == ["modelnet", "scannet"]
    assert set(data.describe()["targets"]) == {"modelnet", "scannet"}
    assert [data.pair_label("shapenet", domain.name) for domain in data.domains()] == ["S>M", "S>S*"]


def test_what_differs_from_the_published_data_is_told(tree):
    assert "DATA.POINTS 64" in benchmark(tree).differs_from_published()
    assert not benchmark(tree, **{"DATA.POINTS": 1024, "DATA.UPRIGHT": False}).differs_from_published()


def test_another_content_or_number_of_points_is_another_fingerprint(tree, tmp_path):
    first = benchmark(tree).describe(), benchmark(tree).describe_source()
    assert benchmark(tree, **{"DATA.POINTS": 32}).describe() != first[0]
    for domain in ("modelnet", "shapenet"):
        write_folders(tmp_path, domain)
    assert (benchmark(tmp_path).describe(), benchmark(tmp_path).describe_source()) == first
    path = tmp_path / "PointDA_data/shapenet/bed/test/bed_0000.npy"
    np.save(path, np.load(path) ** 2)
    assert benchmark(tmp_path).describe() != first[0]


def refused(data):
    with pytest.raises(UserError) as error:
        data.check()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_no_data_is_told_with_the_layout_and_the_source(tmp_path):
    message = refused(benchmark(tmp_path))
    for part in ("modelnet does not exist", "<class>/{train,test}/*.npy", "train,test}_*.h5", "bathtub", "PointDAN"):
        assert part in message


def test_a_missing_class_is_named(modelnet):
    (modelnet / "lamp" / "test" / "lamp_0000.npy").unlink()
    assert f"{modelnet / 'lamp' / 'test'} holds no .npy file" in refused(benchmark(modelnet.parents[1]))
    (modelnet / "lamp" / "test").rmdir()
    assert f"{modelnet / 'lamp' / 'test'} does not exist" in refused(benchmark(modelnet.parents[1]))


def test_a_folder_of_no_class_is_named(modelnet):
    (modelnet / "piano").mkdir()
    (modelnet / ".hidden").mkdir()
    assert f"{modelnet / 'piano'} is not the folder of a known class" in refused(benchmark(modelnet.parents[1]))


def test_an_unknown_domain_is_named_with_the_nearest(tree):
    assert "DATA.TARGET = 'shapnet'" in refused(benchmark(tree, target="shapnet"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"not an array", "is not an .npy file"),
        (np.zeros((5, 2)), "of shape (5, 2)"),
        (np.full((5, 3), np.nan), "holds NaN or Inf"),
        (np.ones((5, 3)), "no two different points"),
        (np.zeros((0, 3)), "is empty"),
        (np.array([["a"] * 3] * 4), "must be real numbers of shape N x 3"),
        (np.array([{"a": 1}] * 3, dtype=object), "is not an .npy file"),
        (np.concatenate([np.ones((64, 3)), np.eye(3)]), "first 64 points are one point"),
    ],
    ids=["text", "flat", "nan", "one point", "empty", "words", "pickle", "late"],
)
def test_a_bad_file_is_named(modelnet, content, problem):
    path = modelnet / "sofa" / "train" / "sofa_0000.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    message = refused(benchmark(modelnet.parents[1]))
    assert str(path) in message and problem in message


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda file: file.__delitem__("label"), "cannot be read"),
        (lambda file: file["label"].__setitem__(3, 10), "has values from 0 to 10: they must be in [0, 9]"),
        (lambda file: file["data"].__setitem__((4, 0, 0), np.inf), "cloud 4 holds NaN or Inf"),
    ],
    ids=["no labels", "label", "inf"],
)
def test_a_bad_h5_file_is_named(tmp_path, change, problem):
    h5py = pytest.importorskip("h5py")
    folder = write_scannet(tmp_path, per_class=1)
    write_folders(tmp_path, "modelnet", per_class=1)
    with h5py.File(folder / "test_0.h5", "a") as file:
        change(file)
    message = refused(benchmark(tmp_path, target="scannet"))
    assert str(folder / "test_0.h5") in message and problem in message


def test_a_truncated_or_missing_h5_file_is_named(tmp_path):
    folder = write_scannet(tmp_path, per_class=1)
    path = folder / "train_0.h5"
    path.write_bytes(path.read_bytes()[:100])
    assert f"{path} cannot be read" in refused(benchmark(tmp_path, "scannet", "scannet"))
    path.unlink()
    assert f"{folder} has no train_*.h5" in refused(benchmark(tmp_path, "scannet", "scannet"))


def test_without_h5py_the_extra_is_named(tree, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert "tta-cattan[points]" in refused(benchmark(tree, target="scannet"))
