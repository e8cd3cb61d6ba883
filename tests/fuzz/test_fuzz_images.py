"""CIFAR-C, images, class folders and lists drawn at random and damaged."""

from __future__ import annotations

import contextlib
import io
import struct
from pathlib import Path
from typing import Any

import bad_files
import numpy as np
import torch
from fuzzing import EDITS, FAST, TEXT, damaged, folder, taken
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tta_cattan.bench import Domain
from tta_cattan.bench.data import benchmark_of
from tta_cattan.bench.data.image_files import class_names_of, read_list, read_rgb
from tta_cattan.config import load_cfg

ROWS = st.tuples(
    st.sampled_from(["uint8", "uint8", "uint8", "int64", "float32", "float64", "bool", "<U2", "complex64", "M8[s]"]),
    st.sampled_from([(15, 32, 32, 3), (15, 32, 32, 3), (3, 32, 32, 3), (15, 64, 64, 3), (15, 32, 32), (15, 3, 32, 32),
                     (0, 32, 32, 3), (), (14, 32, 32, 3)]),
)  # fmt: skip
LABELS = st.tuples(
    st.sampled_from(["int64", "uint8", "int64", "int8", "float32", "bool", "<U2", "O", ">i4"]),
    st.sampled_from([(3,), (3,), (3,), (4,), (0,), (3, 10), ()]),
    st.sampled_from([0, 1, 9, 10, -1, 255]),
)
HEADERS = st.sampled_from(
    [None, None, "(3, (", "(10**9, 307)", "(100000000, 32, 32, 3)", "(-1, 32, 32, 3)", "(15, 32, 32, True)", "[15]",
     "(1" + "0" * 30 + ",)", "__import__('os').mkdir('x')", "(15.0, 32, 32, 3)", "{}", "(" * 200]
) | TEXT  # fmt: skip


def npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=True)
    return content.getvalue()


@FAST
@given(ROWS, LABELS, HEADERS, EDITS, EDITS, st.booleans(), st.sampled_from([-1, 1, 3, 4]), st.integers(1, 5))
def test_cifar_c_is_evaluated_as_it_is_or_refused(rows, labels, header, edits, more, harmed, count, severity):
    images_ = np.arange(1, np.prod(rows[1], dtype=int) + 1).astype("uint8").reshape(rows[1]).astype(rows[0])
    answers = np.full(labels[1], labels[2]).astype(labels[0])
    with folder() as here:
        first, second = npy(images_), npy(answers)
        if harmed:
            first = damaged(first, edits) if header is None else bad_files.npy_header(header) + first[128:]
            second = damaged(second, more)
        bad_files.cifar_c(here, first, second)
        where = ["CORRUPTION.DATASET", "cifar10_c", "CORRUPTION.TYPE", "fog", "DATA_DIR", str(here)]
        benchmark = benchmark_of(load_cfg(None, [*where, "CORRUPTION.NUM_EX", count, "CORRUPTION.SEVERITY", severity]))
        domain = Domain("fog", severity)
        found = taken(lambda: (benchmark.check(), benchmark.identity(domain), benchmark.target(domain))[1:])
    if found is None:
        return
    inputs, classes = found[1].tensors
    assert inputs.dtype == torch.float32 and inputs.shape[1:] == (3, 32, 32) and len(inputs) == len(classes) > 0
    assert inputs.min() >= 0 and inputs.max() <= 1 and classes.min() >= 0 and classes.max() <= 9
    assert count < 0 or len(inputs) == count
    if not harmed:
        n = len(answers)
        expected = images_[(severity - 1) * n :][: len(inputs)]
        assert np.array_equal(inputs.permute(0, 2, 3, 1).mul(255).round().byte().numpy(), expected)
        assert classes.tolist() == answers.tolist()[: len(inputs)]


LETTERS = st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="/\\")
NAMES = st.text(LETTERS, min_size=1, max_size=12).filter(lambda n: n.strip() == n and n not in (".", ".."))
FORMATS = st.sampled_from(["PNG", "JPEG", "BMP", "PPM", "TIFF", "WEBP", "GIF"])
MODES = st.sampled_from(["RGB", "RGB", "L", "1", "P", "RGBA", "I;16", "CMYK", "F"])
FOREIGN = st.sampled_from(
    [b"", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", b"P6 99999999 99999999 255\n",
     b"P5\n3 3\n65535\n", b"GIF89a", b"\xff\xd8\xff\xe0", b"II*\0" + struct.pack("<I", 8) + b"\xff" * 99,
     b"RIFF" + b"\0" * 20, b"BM" + b"\xff" * 60,
     b"\0\0\1\0\1\0", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.4", b"SIMPLE  =  T"]
)  # fmt: skip


@FAST
@given(FORMATS, MODES, st.integers(1, 9), st.integers(1, 9), EDITS, FOREIGN, st.integers(0, 2))
def test_an_image_is_decoded_or_refused(form, mode, width, height, edits, foreign, kind):
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    content = io.BytesIO()
    try:
        Image.fromarray(pixels).convert("L").convert(mode).save(content, form)
    except (OSError, ValueError, KeyError):  # not every format holds every mode
        Image.fromarray(pixels).save(content, "PNG")
    data = (content.getvalue(), damaged(content.getvalue(), edits), damaged(foreign, edits))[kind]
    with folder() as here:
        found = taken(read_rgb, bad_files.text(here / "a.png", data))
    if found is not None:
        assert found.mode == "RGB" and found.width * found.height < 90_000_000
    if kind == 0:
        assert found is not None and found.size == (width, height)


@FAST
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), NAMES, st.integers(0, 9)), max_size=5), st.booleans())
def test_image_folders_are_taken_whole_or_refused(files, skip):
    """Two domains: one as it should be, one with whatever is drawn."""
    content = io.BytesIO()
    Image.fromarray(np.full((9, 9, 3), 7, np.uint8)).save(content, "PNG")
    with folder() as here:
        for domain, drawn in (("amazon", [("a", "x", 9), ("b", "x", 9)]), ("dslr", files)):
            for label, name, kind in drawn:
                path = here / domain / label / f"{name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(OSError):  # a name that the system does not take, or that is there
                    if kind == 0:
                        path.mkdir()
                    elif kind == 1:
                        bad_files.fifo(path)
                    elif kind == 2:
                        path.symlink_to(path)
                    else:
                        bad_files.text(path, content.getvalue()[: 40 if kind == 3 else None])
        where = [
            "CORRUPTION.DATASET",
            "office31",
            "DATA.SOURCE",
            "amazon",
            "DATA.TARGET",
            "dslr",
            "DATA_DIR",
            str(here),
        ]
        keys = ["DATA.SKIP_CORRUPT", skip, "DATA.IMAGE_SIZE", 16]
        benchmark = benchmark_of(load_cfg(None, [*where, *keys]))

        def read() -> list[Any]:
            benchmark.check()
            benchmark.identity(Domain("dslr"))
            return list(benchmark.target(Domain("dslr")))

        found = taken(read)
        whole = {(label, name) for label, name, kind in files if kind > 3}
        if found is not None:
            assert {label for label, _, _ in files} == {"a", "b"}
            assert len(found) <= len(whole) and all(image.shape == (3, 16, 16) for image, _ in found)


ENDINGS = st.sampled_from(["\n", "\r\n", "\n\n", "  \n"])


@FAST
@given(st.dictionaries(st.tuples(NAMES, NAMES), st.integers(0, 99_999), min_size=1, max_size=6), ENDINGS, st.booleans())
def test_a_list_of_images_comes_back_in_its_order(lines, ending, absolute):
    with folder() as here:
        expected = []
        for (place, image), label in lines.items():
            path = here / "images" / f"d{place}" / image  # no folder is called like the list's own
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            expected.append((path, label))
        shown = [path if absolute else path.relative_to(here / "images") for path, _ in expected]
        text = "".join(f"{path} {label}{ending}" for path, (_, label) in zip(shown, expected, strict=True))
        assert read_list(bad_files.text(here / "list.txt", text), [here / "images"]) == expected


@FAST
@given(st.binary(max_size=200) | st.lists(TEXT | st.sampled_from([" ", "\n", "/", "7"])).map("".join))
def test_nonsense_for_a_list_is_refused(content):
    with folder() as here:
        assert taken(read_list, bad_files.text(here / "list.txt", content), [here / "images"]) is None


@FAST
@given(st.lists(st.tuples(NAMES, st.integers(0, 4)), min_size=1, max_size=12))
def test_classes_are_named_or_their_list_is_refused(lines):
    names = taken(class_names_of, [(Path("images") / place / "a.png", label) for place, label in lines], "list.txt")
    if names is not None:
        assert {label for _, label in lines} == set(range(len(names)))
        assert all(names[label] in (place, str(label)) for place, label in lines)
