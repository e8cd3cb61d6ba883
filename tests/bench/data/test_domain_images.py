"""Office-31, OfficeHome and DomainNet as they lie on disk: real images, the same classes everywhere, faults named."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import bad_files
import pytest
import torch
from image_trees import CLASSES, DOMAINS, break_image, write_tree
from PIL import Image

from tta_cattan.bench import Domain
from tta_cattan.bench.data import BENCHMARK_REGISTRY, Stream, image_files
from tta_cattan.bench.data.image_files import read_list
from tta_cattan.config import load_cfg
from tta_cattan.util.errors import UserError
from tta_cattan.util.upstream import import_torchvision


def benchmark(data_dir: Path, name: str = "officehome", source: str = "Art", target: str = "", **changes: object):
    values = {
        "CORRUPTION.DATASET": name,
        "CORRUPTION.NUM_EX": -1,
        "DATA_DIR": data_dir,
        "DATA.SOURCE": source,
        "DATA.TARGET": target,
        "DATA.IMAGE_SIZE": 28,
        **{f"DATA.{key}": value for key, value in changes.items()},
    }
    cfg = load_cfg(None, [str(part) for pair in values.items() for part in pair])
    return BENCHMARK_REGISTRY.get(name)(cfg)


@pytest.mark.parametrize("name", DOMAINS)
def test_the_public_layouts_are_read_with_sorted_classes(tmp_path, name):
    root = write_tree(tmp_path, name, n=2)
    source, *others = DOMAINS[name]
    found = benchmark(tmp_path, name, source)
    found.check()
    assert found.class_names() == sorted(CLASSES) and found.num_classes == 3
    assert [domain.name for domain in found.domains()] == others
    data = found.target(Domain(others[0]))
    folder = root / DOMAINS[name][others[0]]
    assert [path.relative_to(folder).as_posix() for path, _ in data.samples] == [
        f"{label}/{image}" for label in CLASSES for image in ("0000.png", "0001.jpg")
    ]
    assert [label for _, label in data.samples] == [0, 0, 1, 1, 2, 2]
    assert len(found.source()) == len(found.training_source()) == 6
    before = [found.identity(domain) for domain in found.domains()]
    break_image(root / DOMAINS[name][others[0]] / "mug" / "0001.jpg")
    after = [found.identity(domain) for domain in found.domains()]
    assert before[0] != after[0] and before[1:] == after[1:], "a result is of its very files"
    assert f"{source} has 6 images here and {found.sizes[source]:,} in the data set" == found.differs_from_published()


def test_the_source_is_counted_without_decoding_an_image(tmp_path, monkeypatch):
    write_tree(tmp_path, "officehome", n=3)
    monkeypatch.setattr(image_files.Image, "open", lambda path: pytest.fail(f"{path} is decoded"))
    found = benchmark(tmp_path)
    assert found.has_source() and (found.source_count(), found.source_count(per_class=2)) == (9, 6)


def test_a_part_of_a_target_has_every_class_and_is_drawn_by_the_seed(tmp_path):
    write_tree(tmp_path, "officehome", n=4)
    found = benchmark(tmp_path)
    found.cfg.defrost()
    found.cfg.CORRUPTION.NUM_EX = 6
    parts = [found.target(Domain("Clipart"), seed).samples for seed in (0, 0, 1)]
    assert [label for _, label in parts[0]] == [0, 0, 1, 1, 2, 2] and parts[0] == parts[1] != parts[2]


def test_images_are_stretched_and_cropped_as_shot_does(tmp_path):
    root = write_tree(tmp_path, "officehome", n=2)
    found = benchmark(tmp_path)
    path = root / "Art" / CLASSES[0] / "0000.png"
    transforms = import_torchvision("torchvision.transforms.functional")
    with Image.open(path) as image:
        whole = transforms.to_tensor(image.convert("RGB").resize((32, 32), Image.Resampling.BILINEAR))
    torch.testing.assert_close(found.training_source()[0][0], whole)
    torch.testing.assert_close(found.source()[0][0], whole[:, 2:30, 2:30])
    batch = torch.stack([found.training_source()[i][0] for i in range(6)])
    torch.manual_seed(0)
    for image, changed in zip(batch, found.augment(batch), strict=True):
        crops = [image[:, y : y + 28, x : x + 28] for y in range(5) for x in range(5)]
        assert any(torch.equal(changed, c) or torch.equal(changed, c.flip(-1)) for c in crops)


def test_a_domain_is_known_whatever_its_spelling_and_a_wrong_one_is_refused(tmp_path):
    write_tree(tmp_path, "officehome", n=1)
    assert benchmark(tmp_path, source="real_world").source_domain == "Real World"
    assert [d.name for d in benchmark(tmp_path, target="realworld").domains()] == ["Real World"]
    with pytest.raises(UserError, match=r"DATA\.SOURCE = 'Artt' is not a domain of officehome\. Did you mean 'Art'"):
        benchmark(tmp_path, source="Artt").check()
    with pytest.raises(UserError, match=r"DATA\.SOURCE is empty: name the source domain \(Art, Clipart.*pairs"):
        benchmark(tmp_path, source="").check()


def test_a_class_that_one_domain_lacks_is_named_either_way(tmp_path):
    root = write_tree(tmp_path, "officehome", n=1)
    shutil.rmtree(root / "Clipart" / "mug")
    with pytest.raises(UserError, match="the class 'mug' is in Art and not in Clipart"):
        benchmark(tmp_path).check()
    with pytest.raises(UserError, match="the class 'mug' is in Product and not in Clipart"):
        benchmark(tmp_path, source="Clipart", target="Product").check()
    benchmark(tmp_path, target="Product").check()  # the broken domain is not asked for
    (root / "Product" / "mug").rename(root / "Product" / "muggle")
    with pytest.raises(UserError, match="the class 'mug' is in Art and not in Product"):
        benchmark(tmp_path, target="Product").check()


def test_empty_domains_and_classes_and_missing_data_are_told(tmp_path):
    with pytest.raises(UserError) as caught:
        benchmark(tmp_path).check()
    for words in ("does not hold officehome", "OfficeHome/<domain>/<class>/<image>", "Real World", "hemanthdv.org"):
        assert words in str(caught.value)
    root = write_tree(tmp_path, "officehome", n=1)
    shutil.rmtree(root / "Product")
    with pytest.raises(UserError, match=r"OfficeHome/Product is missing\. Expected: .*hemanthdv\.org"):
        benchmark(tmp_path, target="Product").check()
    (root / "Product").mkdir()
    with pytest.raises(UserError, match="Product is empty: it must hold a folder of images per class"):
        benchmark(tmp_path, target="Product").check()
    (root / "Art" / "bike" / "0000.png").unlink()
    with pytest.raises(UserError, match="bike holds no images"):
        benchmark(tmp_path, target="Clipart").check()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_jpeg_stops_a_run_by_name_or_is_left_out_by_key(tmp_path, caplog, workers):
    root = write_tree(tmp_path, "officehome", n=4)
    broken = break_image(root / "Clipart" / "mug" / "0001.jpg")
    (root / "Clipart" / "bike" / "0003.jpg").write_text("<html>not found</html>")
    strict = benchmark(tmp_path, target="Clipart")
    strict.check()
    with pytest.raises(UserError, match=r"image .*0003\.jpg cannot be read .*: get it again or remove it"):
        list(Stream(strict.target(Domain("Clipart")), 4, None, torch.device("cpu"), workers))
    (root / "Clipart" / "mug" / "gone.png").symlink_to("nowhere")
    lenient = benchmark(tmp_path, target="Clipart", SKIP_CORRUPT=True)
    with caplog.at_level(logging.WARNING):
        lenient.check()
    assert "Clipart: 3 of 13 images are corrupt and left out" in caplog.text and str(broken) in caplog.text
    batches = list(Stream(lenient.target(Domain("Clipart")), 4, None, torch.device("cpu"), workers))
    assert sum(len(batch.inputs) for batch in batches) == 10
    for image in (root / "Clipart" / "bike").iterdir():
        break_image(image)
    with pytest.raises(UserError, match="Clipart: every image of the class 'bike' is corrupt"):
        benchmark(tmp_path, target="Clipart", SKIP_CORRUPT=True).check()


def write_lists(root: Path, folder: Path, domains: dict[str, str], prefix: str = "", suffix: str = "list") -> None:
    """Write SHOT-style lists of a tree, not in sorted order, with labels from the last class to the first."""
    folder.mkdir(exist_ok=True)
    for domain, place in domains.items():
        images = sorted(root.joinpath(place).rglob("*.*g"), reverse=True)
        label = {name: len(CLASSES) - 1 - i for i, name in enumerate(CLASSES)}
        lines = [f"{prefix}{image.relative_to(root).as_posix()} {label[image.parent.name]}" for image in images]
        (folder / f"{domain.replace(' ', '_')}_{suffix}.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("prefix", ["", "/home/somebody/data/office-home/"])
def test_shots_lists_decide_images_order_and_labels(tmp_path, prefix):
    root = write_tree(tmp_path, "officehome", n=2)
    write_lists(root, tmp_path / "lists", DOMAINS["officehome"], prefix)
    found = benchmark(tmp_path, target="Real World", LISTS=tmp_path / "lists")
    found.check()
    assert found.class_names() == list(reversed(CLASSES))
    samples = found.target(Domain("Real World")).samples
    assert samples[0] == (root / "Real World" / "mug" / "0001.jpg", 0) and len(samples) == 6
    (tmp_path / "lists" / "Art_list.txt").write_text("Art/bike/0000.png 0\nArt/mug/0000.png 1\n")
    with pytest.raises(UserError, match="the class 'calculator' is in Real World and not in Art"):
        found = benchmark(tmp_path, target="Real World", LISTS=tmp_path / "lists")
        found.check()
    write_lists(root, tmp_path / "lists", {"Art": "Art"}, prefix)
    text = (tmp_path / "lists" / "Art_list.txt").read_text()
    (tmp_path / "lists" / "Art_list.txt").write_text(
        text.replace(" 0\n", " x\n").replace(" 1", " 0").replace(" x", " 1")
    )
    with pytest.raises(UserError, match="the label 0 is 'calculator' in Art and 'mug' in Real World"):
        benchmark(tmp_path, target="Real World", LISTS=tmp_path / "lists").check()


def test_domainnets_lists_part_source_from_target(tmp_path):
    root = write_tree(tmp_path, "domainnet", n=4, domains=("clipart", "sketch"))
    for domain in ("clipart", "sketch"):
        images = sorted(root.joinpath(domain).rglob("*.*g"))
        for part, kept in (("train", ("0000", "0001", "0002")), ("test", ("0003",))):
            lines = [f"{i.relative_to(root)} {CLASSES.index(i.parent.name)}\n" for i in images if i.stem in kept]
            (root / f"{domain}_{part}.txt").write_text("".join(lines))
    found = benchmark(tmp_path, "domainnet", "clipart", "sketch", LISTS="official")
    found.check()
    assert len(found.source()) == 9 and len(found.target(Domain("sketch"))) == 3
    before = found.identity(Domain("sketch"))
    lines = (root / "sketch_test.txt").read_text().splitlines()
    (root / "sketch_test.txt").write_text("\n".join(reversed(lines)))
    assert benchmark(tmp_path, "domainnet", "clipart", "sketch", LISTS="official").identity(Domain("sketch")) != before
    (root / "sketch_test.txt").unlink()
    with pytest.raises(UserError, match=r"DATA\.LISTS = 'official': .*sketch_test\.txt is missing.*ai\.bu\.edu"):
        benchmark(tmp_path, "domainnet", "clipart", "sketch", LISTS="official").check()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Art/bike/0000.png\n", r"line 1: 'Art/bike/0000\.png' is not a path and a label"),
        ("Art/bike/0000.png -1\n", "is not a path and a label"),
        ("Art/bike/0000.png 0\n\nArt/bike/9.png 0\n", r"line 3: there is no image Art/bike/9\.png"),
        ("Art/bike/0000.png 0\nArt/mug/0000.png 2\n", "no image has the label 1, and the labels go up to 2"),
        ("Art/bike/0000.png 0\nArt/mug/0000.png 0\n", "the label 0 has images in 'bike' and in 'mug'"),
        ("\n", "is empty: a list has a path and a label per line"),
    ],
)
def test_lists_that_are_wrong_are_told_by_line(tmp_path, text, words):
    write_tree(tmp_path, "officehome", n=1)
    (tmp_path / "Art_list.txt").write_text(text)
    with pytest.raises(UserError, match=words):
        benchmark(tmp_path, target="Clipart", LISTS=tmp_path).check()


def test_a_huge_or_binary_list_is_refused_before_it_is_read(tmp_path, monkeypatch):
    write_tree(tmp_path, "officehome", n=1)
    (tmp_path / "Art_list.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not text"):
        benchmark(tmp_path, LISTS=tmp_path).check()
    monkeypatch.setattr(image_files, "_MOST_BYTES", 2)
    with pytest.raises(UserError, match="has 3 bytes, and a list of images has 2 at most"):
        benchmark(tmp_path, LISTS=tmp_path).check()


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (f"{'a' * 5000}.png 3", "there is no image"),
        (f"{'a/' * 3000}a.png 3", "there is no image"),
        ("a\x00b.png 3", "there is no image"),
        (f"a.png {'9' * 5000}", "is not a path and a label"),
        ("a.png -1", "is not a path and a label"),
        ("a.png 1e3", "is not a path and a label"),
        ("a.png", "is not a path and a label"),
        ("7", "is not a path and a label"),
    ],
    ids=["long name", "deep name", "null byte", "long label", "negative", "float", "no label", "no path"],
)
def test_a_line_that_no_system_takes(tmp_path, line, part):
    with pytest.raises(UserError, match="line 1: ") as caught:
        read_list(bad_files.text(tmp_path / "list.txt", line), [tmp_path])
    assert part in str(caught.value)


def test_size_is_looked_at_before_anything_is_read(tmp_path):
    path = bad_files.huge(tmp_path / "list.txt", 1 << 40)  # reading it would not end
    with pytest.raises(UserError, match=r"1,099,511,627,776 bytes, and a list of images has 104,857,600 at most"):
        read_list(path, [tmp_path])
