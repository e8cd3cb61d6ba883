"""Checkpoints: what is read, what is refused, and that nothing in them ever runs."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tta_cattan.bench.models.checkpoints import load_weights, read_checkpoint
from tta_cattan.util.errors import UserError


def network(seed: int = 0, width: int = 4) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.Flatten(), nn.Linear(width, 5))


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    return network(seed=1).state_dict()


def assert_loads(path, weights) -> None:
    model = network()
    load_weights(model, path)
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name]), name


@pytest.mark.parametrize("prefix", ["", "module.", "model."])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model_state_dict", "model", "net", "last"])
def test_wrappers_and_prefixes_are_taken_off(tmp_path, weights, prefix, wrapper):
    content = {f"{prefix}{name}": value for name, value in weights.items()}
    torch.save({wrapper: content, "epoch": 3, "best": 0.5} if wrapper else content, tmp_path / "c.pt")
    assert_loads(tmp_path / "c.pt", weights)


def test_safetensors_legacy_files_and_lightning_like_names(tmp_path, weights):
    save_file(weights, tmp_path / "c.safetensors")
    assert_loads(tmp_path / "c.safetensors", weights)
    torch.save(weights, tmp_path / "legacy.pth", _use_new_zipfile_serialization=False)
    assert_loads(tmp_path / "legacy.pth", weights)


def test_half_precision_is_widened_and_counters_may_be_missing(tmp_path, weights):
    half = {n: v.half() for n, v in weights.items() if not n.endswith("num_batches_tracked")}
    torch.save(half, tmp_path / "c.pt")
    model = network()
    load_weights(model, tmp_path / "c.pt")
    for name, value in model.state_dict().items():
        if name in half:
            assert value.dtype == torch.float32 and torch.equal(value, half[name].float())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("3.bias"), r"lacks '3\.bias'\. Check MODEL\.ARCH"),
        (lambda w: [w.pop("3.bias"), w.pop("3.weight")], r"lacks '3\.weight' and 1 more"),
        (lambda w: w.update({"4.weight": torch.ones(2)}), r"has the unknown '4\.weight'"),
        (lambda w: w.update({"3.bias": torch.ones(6)}), r"has another shape for '3\.bias'"),
    ],
)
def test_another_architecture_is_named_and_changes_nothing(tmp_path, weights, change, words):
    change(weights)
    torch.save(weights, tmp_path / "c.pt")
    model, before = network(), {n: v.clone() for n, v in network().state_dict().items()}
    with pytest.raises(UserError, match=rf"c\.pt is of another architecture than Sequential: it {words}"):
        load_weights(model, tmp_path / "c.pt")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Payload:
    """Pickles to a call of os.system: what a hostile checkpoint would hold."""

    def __init__(self, marker) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch '{self.marker}'",)


@pytest.mark.parametrize("name", ["c.pt", "c.pth", "legacy.pt", "plain.pt", "c.safetensors"])
def test_no_code_in_a_checkpoint_runs(tmp_path, weights, name):
    path, marker = tmp_path / name, tmp_path / "it ran"
    content = {**weights, "extra": Payload(marker)}
    if name == "plain.pt":
        path.write_bytes(pickle.dumps(Payload(marker)))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=name != "legacy.pt")
    with pytest.raises(UserError) as caught:
        load_weights(network(), path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value) and "\x1b" not in str(caught.value)
    assert not marker.exists()
    if name == "c.pt":
        assert "(it holds posix.system)" in str(caught.value)
    if name == "plain.pt":
        pickle.loads(path.read_bytes())
        assert marker.exists(), "the payload must be one that runs, or this test shows nothing"


PAGES = [b"<!DOCTYPE html><html><title>Google Drive - Virus scan warning</title>", b"\n <html lang=en>", b"<HTML>"]


def test_what_is_not_a_checkpoint_is_named(tmp_path, weights):
    path = tmp_path / "c.pt"
    for page in PAGES:
        for name in ("c.pt", "c.safetensors"):
            (tmp_path / name).write_bytes(page)
            with pytest.raises(UserError, match=rf"{name} is an HTML page.*delete it and get it again"):
                read_checkpoint(tmp_path / name)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="is empty"):
        read_checkpoint(path)
    with pytest.raises(UserError, match=r"absent\.pt does not exist"):
        read_checkpoint(tmp_path / "absent.pt")
    for content, words in (([1, 2], "holds a list"), ({"a": 1, "b": 2}, "holds no tensors: its keys are a, b")):
        torch.save(content, path)
        with pytest.raises(UserError, match=words):
            read_checkpoint(path)
    torch.save({0: torch.ones(2)}, path)
    with pytest.raises(UserError, match="another architecture"):
        load_weights(network(), path)


@pytest.mark.parametrize("name", ["zip.pt", "legacy.pt", "c.safetensors"])
def test_a_file_cut_anywhere_is_refused_in_one_line(tmp_path, weights, name):
    path = tmp_path / name
    if name == "c.safetensors":
        save_file(weights, path)
    else:
        torch.save(weights, path, _use_new_zipfile_serialization=name == "zip.pt")
    whole = path.read_bytes()
    for cut in (1, 5, 20, 300, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(UserError) as caught:
            read_checkpoint(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    if name == "zip.pt":
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(UserError, match=rf"is truncated \({len(whole) // 2:,} bytes\)"):
            read_checkpoint(path)


def test_random_bytes_are_refused_not_crashed_on(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for number in range(40):
        path = tmp_path / ("c.pt" if number % 2 else "c.safetensors")
        start = (b"", b"PK\x03\x04", b"\x80\x02", b"\x80\x04\x95")[number % 4]
        path.write_bytes(start + bytes(torch.randint(0, 256, (400,), generator=generator).tolist()))
        with pytest.raises(UserError):
            read_checkpoint(path)
