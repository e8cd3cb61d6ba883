"""Input drawn at random: each file is read as what it says or refused in one line, and no code in it runs.

Here a few examples of each; ``benchmarks/faults/fuzz.py`` searches the same properties for hours, led by coverage.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import bad_files
import numpy as np
import pytest
import torch
import yaml
from feature_folders import write_domain
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from small_networks import build, images
from torch import nn

from tta_cattan.alignment import SourceMoments, Subspace, fit_subspace
from tta_cattan.alignment.recolouring import Moments, matrix_power, recolouring, with_ridge
from tta_cattan.alignment.subspace import orthonormality_error
from tta_cattan.bench.data import benchmark_of
from tta_cattan.bench.data.features import open_features
from tta_cattan.bench.data.image_files import class_names_of, read_list, read_rgb
from tta_cattan.bench.domain import Domain
from tta_cattan.bench.models.checkpoints import load_weights
from tta_cattan.bench.protocols import stream as streams
from tta_cattan.bench.results.store import RANGES, SCHEMA, Cell, Record, ResultsStore, checksum
from tta_cattan.config import dump_yaml, get_defaults, leaves, load_cfg
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import write_text
from tta_cattan.util.state import load_state, save_state

T = TypeVar("T")

FAST = settings(derandomize=True, max_examples=40, deadline=None, database=None)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats()
EXACT = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT
JSON = st.recursive(st.none() | st.booleans() | NUMBERS | TEXT, lambda of: st.lists(of) | st.dictionaries(TEXT, of))
FRACTION = st.floats(0, 1, exclude_max=True)
EDITS = st.lists(st.tuples(FRACTION, st.integers(0, 9), st.binary(max_size=9)), max_size=4)
FLOATS = st.sampled_from([0.0, 1.0, -1.0, 1e-30, 1e30, -1e30, np.nan, np.inf, 0.5])


_RUNS_CODE = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class", "socket.connect")
_watching = False


def watch_for_code() -> None:
    """From now on, fail where a file starts a program, connects, or names a class to be unpickled."""
    global _watching
    _watching = True


@pytest.fixture(autouse=True, scope="module")
def guarded() -> Iterator[None]:
    """No file of these tests may run code."""
    global _watching
    watch_for_code()
    yield
    _watching = False


@sys.addaudithook  # there is no way to take it away
def _hook(event: str, _: object) -> None:
    if _watching and event in _RUNS_CODE:
        raise AssertionError(f"{event} while a file was read")


def taken(call: Callable[..., T], *given: Any) -> T | None:
    """Return what the call returns, or None where it refuses in one line."""
    try:
        return call(*given)
    except UserError as error:
        assert len(str(error).splitlines()) == 1, f"not one line: {error}"
        return None


def damaged(content: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    """Return the bytes with some replaced (by more, fewer or none); the last edit of no bytes cuts the rest off."""
    for place, length, new in edits:
        at = int(place * len(content))
        content = content[:at] + new + (content[at + length :] if new or length else b"")
    return content


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("FUZZ_FOLDER")) as name:
        yield Path(name)


# Configs

VALUES = {
    "OPTIM.LR": st.floats(0, allow_infinity=False),
    "OPTIM.STEPS": st.integers(1, 10**6),
    "MODEL.EPISODIC": st.booleans(),
    "MODEL.CKPT_PATH": TEXT.filter(lambda text: "\0" not in text),
    "CATTAN.D": st.integers(0, 10**6),
    "CATTAN.CONFIDENCE": st.sampled_from(["hlr", "slr", "entropy"]),
    "CORRUPTION.SEVERITY": st.lists(st.integers(0, 5), unique=True, min_size=1),
    "SEEDS": st.lists(st.integers(0, 2**32 - 1), unique=True, max_size=4),
}
LAYER = st.fixed_dictionaries({}, optional=VALUES)
KEYS = [name for name, _ in leaves(get_defaults())]
PARTS = sorted({part for name in KEYS for part in name.split(".")})
TOKENS = st.sampled_from(
    [*PARTS, *":,-[]{}&*!#|>'\"%@`?\n\t", "\n  ", ": ", "- ", "&a ", "*a", "<<: *a",
     "!!python/object/apply:os.mkdir [x]", "!!binary ", "!!timestamp ", "_BASE_: ", "mine.yaml", "nan", ".inf", "1e999",
     "0x1F", "1_000", "0o7", "1:30", "2001-99-99", "true", "yes", "~", "\0", "\x1b[2J", "\u2028", "\ufeff", "9" * 5000,
     "[" * 400]
)  # fmt: skip
YAML = st.lists(TOKENS | TEXT | st.integers().map(str), max_size=30).map("".join) | st.binary(max_size=99)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Return dotted keys as the nested mapping of a file."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        node, _, name = key.rpartition(".")
        (tree.setdefault(node, {}) if node else tree)[name] = value
    return tree


def pairs(flat: dict[str, Any]) -> list[Any]:
    return [part for pair in flat.items() for part in pair]


@FAST
@given(st.lists(LAYER, min_size=1, max_size=4), LAYER)
def test_a_value_comes_from_the_last_layer_that_has_it(layers, overrides):
    with folder() as here:
        for number, layer in enumerate(layers):
            base = {"_BASE_": f"{number - 1}.yaml"} if number else {}
            write_text(here / f"{number}.yaml", yaml.safe_dump({**base, **nested(layer)}, allow_unicode=True))
        cfg = load_cfg(here / f"{len(layers) - 1}.yaml", pairs(overrides))
    expected = dict(leaves(get_defaults()))
    for layer in [*layers, overrides]:
        expected.update(layer)
    assert dict(leaves(cfg)) == expected
    assert_comes_back(cfg)


def assert_comes_back(cfg: Any) -> None:
    """Write a config and read it again."""
    with folder() as here:
        write_text(here / "a.yaml", dump_yaml(cfg))
        again = load_cfg(here / "a.yaml")
    assert again == cfg
    assert [type(value) for _, value in leaves(again)] == [type(value) for _, value in leaves(cfg)]


@FAST
@given(YAML, st.lists(st.tuples(st.sampled_from(KEYS) | TEXT, JSON | TEXT), max_size=3))
def test_any_text_as_a_config(text, overrides):
    with folder() as here:
        path = bad_files.text(here / "mine.yaml", text)
        found = taken(load_cfg, path, [part for pair in overrides for part in pair])
    if found is not None:
        assert_comes_back(found)


@FAST
@given(st.dictionaries(st.sampled_from(KEYS), JSON | TEXT, max_size=4))
def test_any_values_in_a_config(values):
    with folder() as here:
        write_text(here / "a.yaml", yaml.safe_dump(nested(values), allow_unicode=True))
        found = taken(load_cfg, here / "a.yaml")
    if found is not None:
        assert_comes_back(found)


# Results


@st.composite
def records(draw) -> Record:
    cell = Cell(draw(TEXT), draw(TEXT), draw(st.integers(0, 5)), draw(st.integers(0, 2**32)))
    metrics = draw(st.dictionaries(TEXT, st.floats(allow_nan=False, allow_infinity=False), max_size=3))
    return Record(cell, draw(TEXT), metrics, draw(st.dictionaries(TEXT, EXACT | st.lists(EXACT), max_size=2)))


@FAST
@given(st.lists(records(), min_size=1, max_size=4), EDITS, records())
def test_results_come_back_once_and_damage_costs_no_other_line(written, edits, more):
    with folder() as here:
        store = ResultsStore(here)
        for record in written:
            store.append(record)
        whole = store.path.read_bytes()
        assert ResultsStore(here).records() == list({record.key: record for record in reversed(written)}.values())[::-1]
        store.path.write_bytes(damaged(whole, edits))
        found = ResultsStore(here).records()
        assert all(record in written for record in found), "no number changes unnoticed"
        kept = store.path.read_bytes().split(b"\n")
        whole_lines = [record for record in written if record.to_line().encode() in kept]
        assert all(record.key in [one.key for one in found] for record in whole_lines)
        store.append(more)
        assert more.key in [one.key for one in ResultsStore(here).records()], "the store still takes results"


LINES = st.fixed_dictionaries(
    {"schema": st.just(SCHEMA) | JSON, "method": TEXT | JSON, "domain": TEXT | JSON,
     "severity": st.integers(0, 5) | JSON,
     "seed": st.integers(0, 9) | JSON, "settings": st.just([]) | JSON, "fingerprint": TEXT | JSON,
     "metrics": st.dictionaries(st.sampled_from(sorted(RANGES)) | TEXT, NUMBERS | JSON) | JSON,
     "info": st.dictionaries(TEXT, JSON) | JSON}
)  # fmt: skip


@FAST
@given(LINES, st.sampled_from([None, *Record(Cell("a", "b", 0, 0), "", {}).__dict__, "schema", "domain"]), EDITS)
def test_a_forged_line_is_a_record_or_refused(content, lost, edits):
    content.pop(lost, None)
    with contextlib.suppress(UserError):  # what canonical JSON cannot hold, no checksum covers
        content["check"] = checksum(content)
    for line in (json.dumps(content), damaged(json.dumps(content).encode(), edits).decode(errors="replace")):
        found = taken(Record.from_line, line)
        if found is not None:
            assert Record.from_line(found.to_line()) == found
            assert all(low <= found.metrics.get(name, low) <= high for name, (low, high) in RANGES.items())
            hash(found.key)


# Tensors in files

DTYPES = [
    torch.float32,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.uint8,
    torch.bool,
]
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def tensors(draw, shape: tuple[int, ...], wrong: bool = True) -> torch.Tensor:
    """A tensor of the shape or, if ``wrong``, perhaps of another shape, dtype or with other values."""
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    if wrong and draw(st.integers(0, 3)) == 0:
        values = np.full(draw(SHAPES | st.just(shape)), draw(FLOATS | st.floats(width=32)), np.float64)
        tensor = torch.from_numpy(values).to(draw(st.sampled_from(DTYPES)))
    elif wrong and tensor.numel() and draw(st.integers(0, 3)) == 0:
        tensor.view(-1)[int(draw(FRACTION) * tensor.numel())] = draw(FLOATS)
    return tensor


def positive(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.abs() if tensor.is_floating_point() else tensor


@st.composite
def subspace_files(draw) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    dim, d = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    basis = torch.linalg.qr(torch.randn(dim, min(d, dim), generator=torch.Generator().manual_seed(0)))[0]
    parts = {
        "basis": draw(st.just(basis) | tensors((dim, d))),
        "eigenvalues": draw(tensors((dim,)).map(positive) | tensors((dim,))),
        "mean": draw(tensors((dim,))),
    }
    return parts, {"format": "tta-cattan-subspace-2", "centered": draw(st.sampled_from(["true", "false", "[]", "2"]))}


@st.composite
def moments_files(draw) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    n, p = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    parts: dict[str, torch.Tensor] = {}
    for layer in draw(st.lists(st.sampled_from(["a", "b.c", ""]), unique=True, max_size=2)):
        root = draw(tensors((n, n)))
        square = root.T @ root if root.is_floating_point() and root.ndim == 2 else root
        parts[f"mean.{layer}"], parts[f"cov.{layer}"] = draw(tensors((n,))), square if draw(st.booleans()) else root
        parts[f"classes.{layer}"] = draw(tensors(()).map(positive) | tensors(()))
    root = draw(tensors((p, p)))
    square = root.T @ root if root.is_floating_point() and root.ndim == 2 else root
    parts["signature"], parts["precision"] = draw(tensors((p,))), square if draw(st.booleans()) else root
    return parts, {"format": "tta-cattan-moments-1"}


HEADER = st.fixed_dictionaries(
    {},
    optional={
        "count": st.integers(-2, 10**30).map(str) | TEXT,
        "layer": JSON.map(json.dumps) | TEXT,
        "provenance": JSON.map(json.dumps) | TEXT,
        "format": TEXT,
        "centered": TEXT,
    },
)
WHOLE = {"count": "9", "layer": "null", "provenance": "{}"}


def fitted(here: Path, parts: dict[str, torch.Tensor], header: dict[str, str], lost: int, edits: Any) -> Path:
    """Write a safetensors file, perhaps without one of its tensors, and damage it."""
    parts = {name: value.contiguous() for place, (name, value) in enumerate(parts.items()) if place != lost}
    save_file(parts, here / "f", metadata=header)
    return bad_files.text(here / "f", damaged((here / "f").read_bytes(), edits))


@FAST
@given(subspace_files(), HEADER, st.integers(0, 9), EDITS, st.booleans())
def test_a_subspace_file_is_a_subspace_or_refused(drawn, header, lost, edits, harmed):
    with folder() as here:
        path = fitted(
            here, drawn[0], {**WHOLE, **drawn[1], **(header if harmed else {})}, lost, edits if harmed else []
        )
        found = taken(Subspace.load, path)
        if found is None:
            return
        assert orthonormality_error(found.basis) < 1e-2 and found.basis.dtype == torch.float32
        every = [found.basis, found.eigenvalues, *([] if found.mean is None else [found.mean])]
        assert all(value.isfinite().all() for value in every) and (found.eigenvalues >= 0).all()
        found.save(here / "again")
        again = Subspace.load(here / "again")
    assert torch.equal(found.basis, again.basis) and torch.equal(found.eigenvalues, again.eigenvalues)
    assert (found.mean is None and again.mean is None) or torch.equal(found.mean, again.mean)
    assert [(s.count, s.centered, s.provenance, s.layer) for s in (found,)] == [
        (s.count, s.centered, s.provenance, s.layer) for s in (again,)
    ]


@FAST
@given(st.integers(2, 12), st.integers(1, 6), st.booleans(), st.booleans(), st.dictionaries(TEXT, EXACT, max_size=3))
def test_a_subspace_comes_back(n, dim, center, keep_mean, provenance):
    features = torch.randn(n, dim, generator=torch.Generator().manual_seed(n))
    written = fit_subspace(features, provenance=provenance, center=center)
    written = written if keep_mean else written.without_mean()
    with folder() as here:
        written.save(here / "s")
        found = Subspace.load(here / "s")
    assert torch.equal(found.basis, written.basis) and torch.equal(found.eigenvalues, written.eigenvalues)
    assert found.mean is None if written.mean is None else torch.equal(found.mean, written.mean)
    assert (found.count, found.centered, found.provenance) == (n, center, provenance)


@FAST
@given(moments_files(), HEADER, st.integers(0, 9), EDITS, st.booleans())
def test_a_moments_file_holds_moments_or_is_refused(drawn, header, lost, edits, harmed):
    with folder() as here:
        path = fitted(
            here, drawn[0], {**WHOLE, **drawn[1], **(header if harmed else {})}, lost, edits if harmed else []
        )
        found = taken(SourceMoments.load, path)
        if found is None:
            return
        found.save(here / "again")
        again = SourceMoments.load(here / "again")
    assert all(map(torch.equal, found.tensors().values(), again.tensors().values()))
    assert (found.count, found.provenance) == (again.count, again.provenance)
    centre = found.signature - found.signature.mean()
    assert centre @ found.precision @ centre >= -1e-3 * centre.square().sum() * found.precision.abs().max()
    assert all(value >= 0 for value in found.classes.values())
    for name, mean in found.mean.items():
        cov = with_ridge(found.cov[name])
        target = Moments(mean + 1, torch.eye(len(mean)), mean.abs(), mean.abs())
        made = recolouring(target, mean, found.cov[name], matrix_power(cov, 0.5), 0.5, 9)
        assert all(value.isfinite().all() for value in made)


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


@st.composite
def states(draw) -> dict[str, Any]:
    """A state_dict of ``tiny``, perhaps with other tensors, names and wrappings."""
    state: dict[str, Any] = {}
    for name, value in tiny().state_dict().items():
        kind = draw(st.integers(0, 15))
        prefix = draw(st.sampled_from(["", "", "", "", "module.", "model.", "x."])) if kind == 1 else ""
        if kind != 2:
            state[prefix + name] = draw(tensors(tuple(value.shape))) if value.is_floating_point() else value
        if kind == 3:
            state[prefix + name] = state[prefix + name].to_sparse()
        if kind == 4:
            state[draw(TEXT)] = draw(tensors((2,)) | EXACT)
    return state


WRAPPERS = st.sampled_from([None, None, "state_dict", "model", "net", "epoch"])


@FAST
@given(states(), st.sampled_from(["zip", "legacy", "safetensors"]), WRAPPERS, EDITS, st.booleans())
def test_a_checkpoint_is_loaded_as_it_is_or_refused(state, form, wrapper, edits, harmed):
    with folder() as here:
        path = here / ("w.safetensors" if form == "safetensors" else "w.pt")
        if form == "safetensors":
            dense = {n: v.to_dense().contiguous() for n, v in state.items() if isinstance(v, torch.Tensor)}
            save_file(dense, path)
        else:
            content = io.BytesIO()
            wrapped = {wrapper: state} if wrapper else state
            torch.save(wrapped, content, _use_new_zipfile_serialization=form == "zip")
            path.write_bytes(content.getvalue())
        if harmed:
            path.write_bytes(damaged(path.read_bytes(), edits))
        model, before = tiny(), tiny().state_dict()
        try:
            done = taken(lambda: [load_weights(model, path)]) is not None
        finally:
            assert not os.listdir(here)[1:], "nothing else was written"
    after = model.state_dict()
    if not done:
        assert all(torch.equal(after[name], before[name]) for name in before), "a refused file changes nothing"
        return
    assert all(value.isfinite().all() for value in after.values()) and (after["1.running_var"] >= 0).all()
    if form == "zip" or not harmed:  # a zip file has checksums
        given_ = {name.removeprefix("module.").removeprefix("model."): value for name, value in state.items()}
        same = [torch.equal(after[n], given_[n].to(after[n].dtype)) for n in after if n in given_]
        assert all(same) and len(same) >= len(after) - 1


# CIFAR-C

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


# Images

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


# Features

FIELDS = [
    "domain",
    "encoder",
    "data",
    "n",
    "dim",
    "dtype",
    "shard_size",
    "classes",
    "versions",
    "format",
    "labels",
    "sha256",
]
SIZES = st.integers(-2, 9) | st.sampled_from([10**9, 10**18, 10**30, True, 2.0])


@FAST
@given(st.dictionaries(st.sampled_from(FIELDS), SIZES | JSON, max_size=2), st.sampled_from(["manifest.json",
       "features-00000.json", "features-00000.npy"]), EDITS, st.booleans())  # fmt: skip
def test_features_are_read_as_they_were_written_or_refused(changes, name, edits, anew):
    with folder() as here:
        rows, labels = write_domain(here, "d", 5)
        path = here / "d" / name
        if anew:
            path.write_bytes(damaged(path.read_bytes(), edits))
        elif path.suffix == ".json":
            path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        where = ["CORRUPTION.DATASET", "features", "DATA.SOURCE", "d", "DATA.TARGET", "d", "DATA_DIR", str(here)]
        benchmark = benchmark_of(load_cfg(None, [*where, "MODEL.IN_FEATURES", 6]))
        open_features.cache_clear()

        def read() -> Any:
            benchmark.check()
            benchmark.describe()
            benchmark.differs_from_published()
            return open_features(here / "d")

        found = taken(read)
    if found is None:
        return
    whole = found.rows(np.arange(len(found.labels)))
    assert np.isfinite(whole).all() and len(whole) == len(found.labels)
    assert np.array_equal(whole, rows), "rows have a hash"
    assert found.labels.min() >= 0 and found.labels.max() < len(found.manifest.classes)
    if name != "features-00000.json":
        assert found.labels.tolist() == labels


# Checkpoints of streams


@st.composite
def changed(draw, value: Any, depth: int = 0) -> Any:
    """A state with one of its parts replaced, or as it is."""
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(value, key=str)))
        if draw(st.integers(0, 4)) == 0:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: draw(changed(value[key], depth + 1))}
    if isinstance(value, (list, tuple)) and value and draw(st.integers(0, 9)):
        place = draw(st.integers(0, len(value) - 1))
        return type(value)([*value[:place], draw(changed(value[place], depth + 1)), *value[place + 1 :]])
    return draw(JSON | tensors((3,)) | st.just(value))


X = images(24, 1)


def adapted(batches: int) -> Any:
    """A method after some batches, and its evaluation as far as a checkpoint sees it."""
    torch.manual_seed(0)
    method, evaluation = build("tent"), streams.StreamEvaluation(None)  # the plan is for the end of a stream
    for number in range(batches):
        batch = X[8 * number : 8 * number + 8]
        evaluation.add(torch.arange(8), method(batch), torch.zeros(8, dtype=torch.long))
    return method, evaluation


@FAST
@given(EDITS)
def test_a_checkpoint_of_a_stream_goes_on_bit_for_bit_or_starts_again(edits):
    method, evaluation = adapted(2)
    fresh, nothing = adapted(0)
    before = {name: value.clone() for name, value in fresh.state_dict().items() if isinstance(value, torch.Tensor)}
    with folder() as here:
        streams._save(here / "c.pt", method, evaluation, 2, 1.0, None)
        whole = (here / "c.pt").read_bytes()
        (here / "c.pt").write_bytes(damaged(whole, edits))
        done = streams._resume(here / "c.pt", fresh, nothing, None)
    if damaged(whole, edits) == whole:
        assert done == 2 and all(map(torch.equal, nothing.parts(), evaluation.parts()))
        assert torch.equal(fresh.predict(X), method.predict(X))
    else:
        assert done == 0 and nothing.count == 0
        assert all(torch.equal(value, before[name]) for name, value in fresh.state_dict().items() if name in before)


@FAST
@given(st.data())
def test_a_forged_checkpoint_of_a_stream_runs_no_code_and_is_taken_or_refused(data):
    method, evaluation = adapted(2)
    with folder() as here:
        streams._save(here / "c.pt", method, evaluation, 2, 1.0, None)
        state = data.draw(changed(load_state(here / "c.pt")))
        save_state(here / "c.pt", state if isinstance(state, dict) else {"done": state})
        fresh, nothing = adapted(0)
        taken(streams._resume, here / "c.pt", fresh, nothing, None)
