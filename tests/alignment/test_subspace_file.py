"""Subspace files: what goes in comes out, and nothing else is let in."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from tta_cattan.alignment import Subspace, fit_subspace, orthonormality_error
from tta_cattan.util.errors import UserError


@pytest.fixture
def subspace() -> Subspace:
    return fit_subspace(torch.randn(100, 20), d=6, provenance={"model": "abc", "n": 3})


def test_round_trip(subspace, tmp_path):
    subspace.save(tmp_path / "s.safetensors")
    back = Subspace.load(tmp_path / "s.safetensors")
    for name in ("basis", "eigenvalues", "mean"):
        assert torch.equal(getattr(back, name), getattr(subspace, name))
    assert (back.count, back.centered, back.provenance) == (100, True, {"model": "abc", "n": 3})
    assert [p.name for p in tmp_path.iterdir()] == ["s.safetensors"]


def test_half_precision_stays_orthonormal(subspace, tmp_path):
    subspace.save(tmp_path / "s.safetensors", dtype=torch.float16)
    back = Subspace.load(tmp_path / "s.safetensors")
    assert orthonormality_error(back.basis) < 1e-5
    torch.testing.assert_close(back.basis, subspace.basis, atol=2e-3, rtol=0)


def test_without_mean(subspace, tmp_path):
    subspace.without_mean().save(tmp_path / "s.safetensors")
    assert Subspace.load(tmp_path / "s.safetensors").mean is None


def test_truncate(subspace):
    assert torch.equal(subspace.truncate(2).basis, subspace.basis[:, :2])
    with pytest.raises(UserError, match=r"1\.\.6"):
        subspace.truncate(7)


def _write(path, **changes):
    tensors = {"basis": torch.eye(5)[:, :2].contiguous(), "eigenvalues": torch.ones(2), "mean": torch.zeros(5)}
    header = {"format": "tta-cattan-subspace-2", "count": "9", "centered": "true", "layer": "null", "provenance": "{}"}
    for key, value in changes.items():
        (header if isinstance(value, str) else tensors)[key] = value
    save_file({k: v for k, v in tensors.items() if v is not None}, path, metadata=header)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "other"}, "not a subspace"),
        ({"count": "many"}, "damaged"),
        ({"centered": "yes"}, "damaged"),
        ({"provenance": "{"}, "damaged"),
        ({"basis": torch.ones(5, 2)}, "not orthonormal"),
        ({"basis": torch.ones(2, 5)}, "shape"),
        ({"mean": torch.zeros(4)}, "shape"),
        ({"mean": torch.full((5,), float("nan"))}, "NaN"),
    ],
)
def test_damage_is_named(tmp_path, changes, words):
    _write(tmp_path / "s.safetensors", **changes)
    with pytest.raises(UserError, match=words):
        Subspace.load(tmp_path / "s.safetensors")


def test_not_a_safetensors_file(tmp_path, subspace):
    path = tmp_path / "s.safetensors"
    path.write_text("<html>not here</html>")
    with pytest.raises(UserError, match="not a subspace file"):
        Subspace.load(path)
    subspace.save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="not a subspace file"):
        Subspace.load(path)
    with pytest.raises(UserError, match="does not exist"):
        Subspace.load(tmp_path / "absent")


def test_the_file_holds_what_it_says(subspace, tmp_path):
    path = tmp_path / "s.safetensors"
    subspace.save(path)
    length = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + length])
    assert set(header) == {"basis", "eigenvalues", "mean", "__metadata__"}
    assert set(header["__metadata__"]) == {"format", "count", "centered", "layer", "provenance"}
