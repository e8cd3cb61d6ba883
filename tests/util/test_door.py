"""The door: what passes comes out as it was, what does not is one line that names the thing, the value, the remedy."""

from __future__ import annotations

import tempfile
from pathlib import Path

import bad_files
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tta_cattan.util.door import checked_array, checked_labels, checked_tensor, open_npy, regular_file
from tta_cattan.util.errors import UserError, first_line, printable

FAST = settings(derandomize=True, max_examples=80, deadline=None, database=None)
DTYPES = ("uint8", "int16", "int64", "float16", "float32", "float64", "bool", "complex64", "<U2", "S3", "M8[s]")
TORCH = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.cfloat,
)


def test_only_regular_files_are_opened(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert regular_file(tmp_path / "file") == tmp_path / "file"
    assert regular_file(tmp_path / "link").read_text() == "x"
    for path, kind in (
        (bad_files.fifo(tmp_path / "pipe"), "a pipe"),
        (tmp_path, "a folder"),
        ("/dev/zero", "a device"),
    ):
        with pytest.raises(UserError, match=f"is {kind}, not a file: move it"):
            regular_file(path, "move it")
    with pytest.raises(FileNotFoundError):
        regular_file(tmp_path / "absent")


def test_npy_files(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6).reshape(2, 3))
    found = open_npy(tmp_path / "a.npy")
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]] and isinstance(found.base, np.memmap)
    assert not found.flags.writeable


@FAST
@given(
    st.binary(max_size=60)
    | st.sampled_from([b"", bad_files.npz_bytes(y=np.zeros(2)), bad_files.npy_header("(10**20,)")])
)
def test_bytes_that_are_no_array(content):
    with tempfile.TemporaryDirectory() as folder:
        for start in (b"", b"\x93NUMPY\x01\x00"):
            path = bad_files.text(Path(folder) / "a.npy", start + content)
            with pytest.raises(UserError, match=r"is not an \.npy file") as caught:
                open_npy(path)
            assert len(str(caught.value).splitlines()) == 1


@FAST
@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=4),
    st.sampled_from(["uint8", "integer", "real"]),
    st.lists(st.none() | st.integers(0, 3), max_size=4),
)
def test_an_array_passes_only_if_kind_and_shape_are_right(dtype, shape, kind, wanted):
    array = np.zeros(shape, dtype)
    kinds = {"uint8": ("uint8",), "integer": DTYPES[:3], "real": DTYPES[:6]}
    fits = len(shape) == len(wanted) and all(w in (None, n) for n, w in zip(shape, wanted, strict=True))
    if fits and dtype in kinds[kind] and array.size:
        assert checked_array("it", array, kind, wanted) is array
        return
    with pytest.raises(UserError, match=r"^it is .*: it must be .*; get it again$"):
        checked_array("it", array, kind, wanted)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_real_numbers_are_finite(value):
    with pytest.raises(UserError, match="it holds NaN or Inf"):
        checked_array("it", np.array([0, value]), "real", (2,))


def test_labels_are_integers_of_the_classes():
    for dtype in ("uint8", ">i4", "uint64"):
        found = checked_labels("y", np.array([0, 9], dtype), 2, 10)
        assert found.tolist() == [0, 9] and found.dtype == np.dtype("=i8")
    for labels in ([0, 10], [-1, 3]):
        with pytest.raises(UserError, match=r"y has values from .* they must be in \[0, 9\]"):
            checked_labels("y", np.array(labels), 2, 10)
    with pytest.raises(UserError, match=r"y is int64 of shape \(2,\): it must be integers of shape 3"):
        checked_labels("y", np.array([1, 2]), 3, 10)


@FAST
@given(st.sampled_from(TORCH), st.sampled_from(TORCH))
def test_a_tensor_passes_only_as_the_same_kind_of_number(dtype, like):
    tensor, wanted = torch.ones(3, dtype=dtype), torch.zeros(3, dtype=like)
    alike = (
        dtype.is_floating_point == like.is_floating_point
        and dtype.is_complex == like.is_complex
        and (dtype is torch.bool) == (like is torch.bool)
    )
    if alike:
        assert torch.equal(checked_tensor("w", tensor, wanted), torch.ones(3, dtype=like))
    else:
        with pytest.raises(UserError, match=r"^w is \w+: it must be \w+; get it again$"):
            checked_tensor("w", tensor, wanted)


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (torch.tensor([1.0, torch.nan]), "holds NaN or Inf"),
        (torch.tensor([1.0, 1e300], dtype=torch.float64), "holds NaN or Inf"),
        (torch.tensor([1.0, -0.5]), "has the value -0.5: it must be >= 0"),
        (torch.ones(3), r"has shape \(3,\): it must have \(2,\)"),
        (torch.ones(2).to_sparse(), "is sparse"),
        (torch.ones(2, device="meta"), "is without data"),
    ],
)
def test_a_tensor_is_dense_finite_and_in_range(tensor, problem):
    with pytest.raises(UserError, match=f"w {problem}"):
        checked_tensor("w", tensor, torch.zeros(2), low=0)


@FAST
@given(st.text())
def test_what_is_printed_does_not_steer_the_terminal(text):
    assert printable(text).isprintable()
    assert not text.isprintable() or printable(text) == text


def test_words_of_an_error():
    assert printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"
    assert first_line(ValueError("one. two\nthree")) == "one" and first_line(KeyError()) == "KeyError"
