"""ImageNet-C streamed from disk: the images and labels that RobustBench evaluates, one at a time."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from digits_runs import need_robustbench
from PIL import Image

from tta_cattan.bench import Domain
from tta_cattan.bench.data import BENCHMARK_REGISTRY, Stream, imagenet_c
from tta_cattan.bench.data.imagenet_c import class_labels, robustbench_ids
from tta_cattan.bench.models.zoo import LoadedModel
from tta_cattan.cli.main import main
from tta_cattan.config import load_cfg
from tta_cattan.util.errors import UserError

need_robustbench()
FOG = Domain("fog", 5)
CPU = torch.device("cpu")
N = 6


def benchmark(data_dir, **changes: object):
    values = {"CORRUPTION.DATASET": "imagenet_c", "DATA_DIR": data_dir, "CORRUPTION.TYPE": "fog"}
    values |= {"CORRUPTION.SEVERITY": 5, "CORRUPTION.NUM_EX": N, **changes}
    cfg = load_cfg(None, [str(part) for pair in values.items() for part in pair])
    return BENCHMARK_REGISTRY.get(cfg.CORRUPTION.DATASET)(cfg)


def write_image(path, seed: int, size: tuple[int, int] = (24, 24)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="JPEG")


@pytest.fixture
def data_dir(tmp_path):
    """All 1,000 class folders, and RobustBench's first N images."""
    root = tmp_path / "data" / "ImageNet-C" / "fog" / "5"
    for wnid in class_labels():
        (root / wnid).mkdir(parents=True)
    for seed, name in enumerate(robustbench_ids()[:N]):
        write_image(root / name, seed)
    return tmp_path / "data"


def test_the_table_of_classes_is_the_sorted_wnids():
    labels = class_labels()
    assert list(labels.values()) == list(range(1000)) and list(labels) == sorted(labels)
    assert len(robustbench_ids()) == len(set(robustbench_ids())) == 5000


def test_order_labels_and_pixels_are_robustbenchs(data_dir):
    from tta_cattan.util.upstream import import_robustbench

    subject = benchmark(data_dir)
    subject.check()
    ours = subject.target(FOG)
    theirs = import_robustbench("robustbench.loaders").CustomImageFolder(
        str(data_dir / "ImageNet-C" / "fog" / "5"), import_robustbench("torchvision.transforms").ToTensor()
    )
    assert len(ours) == N and [str(path) for path, _ in ours.samples] == [path for path, _ in theirs.samples[:N]]
    for index in range(N):
        (image, label), (expected, target, _) = ours[index], theirs[index]
        assert torch.equal(image, expected) and label == target and image.shape == (3, 24, 24), "no resize"
    smaller = benchmark(data_dir, **{"DATA.IMAGE_SIZE": 16}).target(FOG)[0][0]  # 24 -> 18 -> 16
    with Image.open(ours.samples[0][0]) as image:
        expected = image.convert("RGB").resize((18, 18), Image.Resampling.BILINEAR).crop((1, 1, 17, 17))
    assert np.array_equal((smaller * 255).round().byte().permute(1, 2, 0).numpy(), np.asarray(expected))
    everything = benchmark(data_dir, **{"CORRUPTION.NUM_EX": 5000}).target(FOG)
    assert [label for _, label in everything.samples] == theirs.targets
    (batch,) = Stream(ours, N, None, CPU)
    assert batch.labels.tolist() == theirs.targets[:N] and len(set(theirs.targets[:N])) > 1


def test_nothing_is_decoded_before_it_is_needed(data_dir, monkeypatch):
    opened = []
    real = Image.open

    def read(path, **options):
        opened.append(path)
        return real(path, **options)

    monkeypatch.setattr("tta_cattan.bench.data.image_files.Image.open", read)
    subject = benchmark(data_dir)
    subject.check()
    data = subject.target(FOG)
    batches = iter(Stream(data, 2, None, CPU))
    assert opened == []
    next(batches)
    assert opened == [path for path, _ in data.samples[:2]]
    assert not any(isinstance(value, torch.Tensor) for value in vars(data).values())


def test_all_that_is_there_has_the_right_labels_though_classes_are_absent(tmp_path):
    root = tmp_path / "ImageNet-C" / "fog" / "5"
    chosen = sorted(class_labels())[7::250]
    for wnid in reversed(chosen):
        for name in ("b.JPEG", "a.png"):
            write_image(root / wnid / name, 0)
        (root / wnid / "notes.txt").write_text("not an image")
    subject = benchmark(tmp_path, **{"CORRUPTION.NUM_EX": -1})
    subject.check()
    samples = subject.target(FOG).samples
    assert [(path.parent.name, path.name) for path, _ in samples] == [
        (wnid, name) for wnid in chosen for name in ("a.png", "b.JPEG")
    ]
    assert [label for _, label in samples] == [7, 7, 257, 257, 507, 507, 757, 757]
    with pytest.raises(UserError, match=r"NUM_EX = 50000, and .*fog/5 holds 8 images: give at most that many, or -1"):
        benchmark(tmp_path, **{"CORRUPTION.NUM_EX": 50000}).target(FOG)
    with pytest.raises(UserError, match=r"lacks 996 of the 1,000 class folders, e\.g\. n01440764.*NUM_EX -1"):
        benchmark(tmp_path).check()
    with pytest.raises(UserError, match=r"NUM_EX = 10000: give at most 5000.*50000 or -1"):
        benchmark(tmp_path, **{"CORRUPTION.NUM_EX": 10000}).check()
    (root / "cats").mkdir()
    with pytest.raises(UserError, match="cats is not the folder of a known class"):
        benchmark(tmp_path, **{"CORRUPTION.NUM_EX": -1}).target(FOG)


def test_missing_data_shows_the_tree_the_size_and_the_record(tmp_path):
    with pytest.raises(UserError) as caught:
        benchmark(tmp_path).check()
    for words in ("ImageNet-C/fog/5 is missing", "<corruption>/<severity>/<wnid>/*.JPEG", "73 GB", "2235448"):
        assert words in str(caught.value)
    with pytest.raises(UserError, match=r"ImageNet-3DCC/fog_3d/5 is missing.*3DCommonCorruptions"):
        benchmark(tmp_path, **{"CORRUPTION.DATASET": "imagenet_3dcc", "CORRUPTION.TYPE": "fog_3d"}).check()
    with pytest.raises(UserError, match=r"val is missing.*6\.3 GB"):
        benchmark(tmp_path, **{"CORRUPTION.DATASET": "imagenet_clean"}).check()
    with pytest.raises(UserError, match=r"'fogg'\. Did you mean 'fog'"):
        benchmark(tmp_path, **{"CORRUPTION.TYPE": "fogg"}).check()
    with pytest.raises(UserError, match="imagenet_clean"):
        benchmark(tmp_path, **{"CORRUPTION.SEVERITY": 0}).check()
    (tmp_path / "ImageNet-C" / "fog" / "5").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no images"):
        benchmark(tmp_path, **{"CORRUPTION.NUM_EX": -1}).target(FOG)


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_absent_and_odd_images_are_named_in_one_line(data_dir, workers):
    data = benchmark(data_dir).target(FOG)
    whole = data.samples[3][0].read_bytes()
    for content in (whole[: len(whole) // 2], b"<html>", b"", None):
        data.samples[3][0].unlink() if content is None else data.samples[3][0].write_bytes(content)
        with pytest.raises(UserError) as caught:
            list(Stream(data, 2, None, CPU, workers))
        assert f"image {data.samples[3][0]} cannot be read" in str(caught.value)
        assert "\n" not in str(caught.value), "a worker's traceback is not for the user"
    write_image(data.samples[3][0], 0, (30, 24))
    with pytest.raises(UserError, match=r"\(3, 24, 24\) and \(3, 24, 30\)"):
        list(Stream(data, 2, None, CPU, workers))
    assert len(list(Stream(data, 1, None, CPU, workers))) == N


def test_clean_and_source_images_are_resized_and_cropped(tmp_path):
    wnids = sorted(class_labels())[:3]
    for seed, wnid in enumerate(wnids):
        for folder in ("val", "train"):
            write_image(tmp_path / folder / wnid / "a.JPEG", seed, (60, 40))
    changes = {"CORRUPTION.DATASET": "imagenet_clean", "CORRUPTION.NUM_EX": -1, "DATA.IMAGE_SIZE": 28}
    subject = benchmark(tmp_path, **changes)
    subject.check()
    for data in (subject.target(Domain("clean")), subject.source()):
        assert [label for _, label in data.samples] == [0, 1, 2] and data[0][0].shape == (3, 28, 28)
    with Image.open(tmp_path / "val" / wnids[0] / "a.JPEG") as image:
        expected = image.convert("RGB").resize((48, 32), Image.Resampling.BILINEAR).crop((10, 2, 38, 30))
    shown = (subject.target(Domain("clean"))[0][0] * 255).round().byte().permute(1, 2, 0).numpy()
    assert np.array_equal(shown, np.asarray(expected))
    assert subject.has_source() and not benchmark(tmp_path / "absent", **changes).has_source()
    with pytest.raises(UserError, match=r"imagenet_clean has no source data: set DATA\.SOURCE_DIR"):
        benchmark(tmp_path / "absent", **changes).source()


def test_the_source_is_counted_without_decoding_an_image(tmp_path, monkeypatch):
    for wnid in sorted(class_labels())[:3]:
        for name in "abc":
            write_image(tmp_path / "train" / wnid / f"{name}.JPEG", 0, (24, 24))
    monkeypatch.setattr("tta_cattan.bench.data.image_files.Image.open", lambda path: pytest.fail(f"{path} is decoded"))
    subject = benchmark(tmp_path)
    assert subject.has_source() and (subject.source_count(), subject.source_count(per_class=2)) == (9, 6)


@pytest.mark.parametrize("change", ["a size", "a name", "one less", "content of a class's first"])
def test_the_source_is_known_by_all_names_and_sizes(tmp_path, change):
    for wnid in sorted(class_labels())[:3]:
        for name in "abc":
            (tmp_path / "train" / wnid).mkdir(parents=True, exist_ok=True)
            (tmp_path / "train" / wnid / f"{name}.JPEG").write_bytes(b"12345")
    before = benchmark(tmp_path).describe_source()
    assert benchmark(tmp_path).describe_source() == before
    wnid = tmp_path / "train" / max(sorted(class_labels())[:3])
    if change == "a size":
        (wnid / "b.JPEG").write_bytes(b"123")
    elif change == "a name":
        (wnid / "b.JPEG").rename(wnid / "d.JPEG")
    elif change == "one less":
        (wnid / "c.JPEG").unlink()
    else:
        (wnid / "a.JPEG").write_bytes(b"54321")
    imagenet_c._training_samples.cache_clear()
    assert benchmark(tmp_path).describe_source() != before
    assert benchmark(tmp_path / "absent").describe_source()["name"] == "ImageNet"


def test_the_harness_runs_on_it_and_says_one_line_about_a_damaged_image(data_dir, tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(8, 1000),
    )  # fmt: skip
    monkeypatch.setattr("tta_cattan.bench.run.setting.source_model", lambda *_: LoadedModel.of(net, "the test"))
    arguments = ["--cfg", "cfgs/imagenet_c/tent.yaml", "MODEL.ARCH", "resnet50_v1", "DATA_DIR", str(data_dir)]
    arguments += ["CORRUPTION.TYPE", "fog", "CORRUPTION.NUM_EX", str(N), "SEEDS", "0", "TEST.EPOCHS", "1", "DEVICE"]
    arguments += ["cpu", "TEST.NUM_WORKERS", "2", "SAVE_DIR", str(tmp_path / "save")]
    assert main([*arguments, "TEST.BATCH_SIZE", "3"]) == 0
    assert "tent" in capsys.readouterr().out
    bad = data_dir / "ImageNet-C" / "fog" / "5" / robustbench_ids()[1]
    bad.write_bytes(bad.read_bytes()[:300])
    assert main([*arguments, "TEST.BATCH_SIZE", "2"]) == 2
    shown = capsys.readouterr().err
    assert shown.splitlines()[-1].startswith(f"error: image {bad} cannot be read")
    assert "Traceback" not in shown and sys.exc_info() == (None, None, None)
