"""CIFAR-C as RobustBench reads it, and the clean sets in torchvision's layout."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from digits_runs import need_robustbench

from tta_cattan.bench import Domain
from tta_cattan.bench.data import BENCHMARK_REGISTRY
from tta_cattan.config import load_cfg
from tta_cattan.util.errors import UserError

FOLDERS = {"cifar10_c": "CIFAR-10-C", "cifar100_c": "CIFAR-100-C"}
N = 12


def benchmark(name: str, data_dir, **changes: object):
    values = {"CORRUPTION.DATASET": name, "DATA_DIR": data_dir, "CORRUPTION.TYPE": "fog", "CORRUPTION.NUM_EX": N}
    cfg = load_cfg(None, [str(part) for pair in {**values, **changes}.items() for part in pair])
    return BENCHMARK_REGISTRY.get(name)(cfg)


def write_cifar_c(folder, n_classes: int) -> None:
    """Write the true shape, 50,000 rows, with images in the first of each severity only: the files stay sparse."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    rows = np.lib.format.open_memmap(folder / "fog.npy", "w+", np.uint8, (50000, 32, 32, 3))
    labels = np.lib.format.open_memmap(folder / "labels.npy", "w+", np.uint8, (50000,))
    labels[:] = np.tile(rng.integers(0, n_classes, 10000), 5)
    for severity in range(5):
        rows[severity * 10000 :][: N + 5] = rng.integers(0, 256, (N + 5, 32, 32, 3))


@pytest.mark.parametrize(("name", "n_classes"), [("cifar10_c", 10), ("cifar100_c", 100)])
def test_images_and_labels_are_robustbenchs(tmp_path, monkeypatch, name, n_classes):
    need_robustbench()
    from tta_cattan.util.upstream import import_robustbench

    write_cifar_c(tmp_path / FOLDERS[name], n_classes)
    subject = benchmark(name, tmp_path)
    subject.check()
    loader = getattr(import_robustbench("robustbench.data"), f"load_{name.replace('_', '')}")
    stored = np.load(tmp_path / FOLDERS[name] / "fog.npy", mmap_mode="r")
    for severity in (1, 5):
        images, labels = subject.target(Domain("fog", severity)).tensors
        theirs = loader(N, severity, str(tmp_path), False, ["fog"])
        assert torch.equal(images, theirs[0]) and torch.equal(labels, theirs[1].long())
        assert images.dtype == torch.float32 and labels.dtype == torch.int64 and len(images) == N
        row = stored[(severity - 1) * 10000 + 3].astype(np.float32).transpose(2, 0, 1) / 255
        assert np.array_equal(images[3].numpy(), row)
    monkeypatch.setattr("tta_cattan.bench.data.cifar_c.N_TEST", N + 5)  # as if all images were N + 5
    assert len(benchmark(name, tmp_path, **{"CORRUPTION.NUM_EX": -1}).target(Domain("fog", 5))) == N + 5
    with pytest.raises(UserError, match=rf"NUM_EX = 60000, and .*labels.npy counts {N + 5} images"):
        benchmark(name, tmp_path, **{"CORRUPTION.NUM_EX": 60000}).check()


def test_what_is_missing_is_named_with_the_way_to_get_it(tmp_path):
    with pytest.raises(UserError) as caught:
        benchmark("cifar10_c", tmp_path).check()
    message = str(caught.value)
    for words in ("CIFAR-10-C/labels.npy is missing", "<corruption>.npy", "2.9 GB", "Zenodo record 2535967",
                  "CIFAR-10-C.tar", f"({tmp_path})", "make-corruptions"):  # fmt: skip
        assert words in message
    write_cifar_c(tmp_path / "CIFAR-100-C", 100)
    benchmark("cifar100_c", tmp_path).check()
    with pytest.raises(UserError, match=r"CIFAR-100-C/snow.npy is missing.*3555552"):
        benchmark("cifar100_c", tmp_path, **{"CORRUPTION.TYPE": "fog,snow"}).check()
    with pytest.raises(UserError, match=r"'frog'. Did you mean 'fog'"):
        benchmark("cifar10_c", tmp_path, **{"CORRUPTION.TYPE": "frog"}).check()
    with pytest.raises(UserError, match="cifar10_clean"):
        benchmark("cifar10_c", tmp_path, **{"CORRUPTION.SEVERITY": "5,0"}).check()


def write_clean(folder, n: int) -> tuple[np.ndarray, list[int]]:
    rng = np.random.default_rng(1)
    images, labels = rng.integers(0, 256, (n, 3072), dtype=np.uint8), rng.integers(0, 10, n).tolist()
    folder.mkdir()
    (folder / "test_batch").write_bytes(pickle.dumps({"data": images, "labels": labels}))
    (folder / "data_batch_1").write_bytes(pickle.dumps({"data": images[::-1], "labels": labels[::-1]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    return images.reshape(n, 3, 32, 32), labels


def test_clean_images_in_torchvisions_layout(tmp_path, monkeypatch):
    datasets = pytest.importorskip("torchvision.datasets")
    images, labels = write_clean(tmp_path / "cifar-10-batches-py", 20)
    # torchvision checks the MD5 of the true files; None means that it looks only whether they are there.
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [["test_batch", None]])
    monkeypatch.setattr(datasets.CIFAR10, "train_list", [["data_batch_1", None]])
    monkeypatch.setattr(datasets.CIFAR10, "meta", {**datasets.CIFAR10.meta, "md5": None})
    subject = benchmark("cifar10_clean", tmp_path)
    subject.check()
    assert [domain.label for domain in subject.domains()] == ["clean"]
    shown = subject.target(subject.domains()[0]).tensors
    assert torch.equal((shown[0] * 255).round().byte(), torch.from_numpy(images[:N]))
    assert shown[1].tolist() == labels[:N] and shown[0].max() <= 1
    source = subject.source().tensors
    assert source[1].tolist() == labels[::-1] and torch.equal((source[0][0] * 255).byte(), torch.tensor(images[-1]))


def test_clean_images_missing_or_damaged(tmp_path):
    pytest.importorskip("torchvision")
    subject = benchmark("cifar10_clean", tmp_path)
    with pytest.raises(UserError, match=r"cifar-10-batches-py is missing.*CIFAR10\(DATA_DIR, download=True\)"):
        subject.check()
    assert not subject.has_source()
    with pytest.raises(UserError, match="has no source data"):
        subject.source()
    write_clean(tmp_path / "cifar-10-batches-py", 3)
    with pytest.raises(UserError, match=r"cifar-10-batches-py.*is damaged"):
        subject.target(Domain("clean"))


def test_source_images_from_an_npz_file(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(6))
    images, labels = benchmark("cifar10_c", tmp_path, **{"DATA.SOURCE_DIR": tmp_path / "mine.npz"}).source().tensors
    assert torch.equal((images * 255).round().byte(), torch.from_numpy(x).permute(0, 3, 1, 2))
    assert labels.tolist() == list(range(6)) and labels.dtype == torch.int64
    assert not benchmark("cifar10_c", tmp_path).has_source()
    bad = {"a": {"x": x}, "b": {"x": x.astype(float), "y": np.arange(6)}, "c": {"x": x, "y": np.arange(5)}}
    for name, arrays in bad.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(UserError, match=rf"{name}\.npz"):
            benchmark("cifar10_c", tmp_path, **{"DATA.SOURCE_DIR": tmp_path / f"{name}.npz"}).source()
    (tmp_path / "d.npz").write_text("<html>")
    with pytest.raises(UserError, match=r"d\.npz is not an .npz file"):
        benchmark("cifar10_c", tmp_path, **{"DATA.SOURCE_DIR": tmp_path / "d.npz"}).source()


def test_the_source_is_counted_by_its_labels_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("tta_cattan.bench.data.cifar_c.load_npz", lambda path: pytest.fail(f"{path} is decoded"))
    np.savez(tmp_path / "mine.npz", x=np.zeros((7, 32, 32, 3), np.uint8), y=[0, 0, 0, 1, 1, 2, 2])
    subject = benchmark("cifar10_c", tmp_path, **{"DATA.SOURCE_DIR": tmp_path / "mine.npz"})
    assert subject.has_source() and (subject.source_count(), subject.source_count(per_class=2)) == (7, 6)
    (tmp_path / "cifar-10-batches-py").mkdir()
    files = benchmark("cifar10_c", tmp_path)
    assert files.has_source() and (files.source_count(), files.source_count(per_class=3)) == (50000, 30)
