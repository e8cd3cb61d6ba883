"""Files drawn at random, whole and damaged: what was written comes back, and damage is never taken for it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tta_cattan.alignment import Subspace, fit_subspace
from tta_cattan.bench.results.store import Cell, Record, ResultsStore
from tta_cattan.util.errors import UserError

FAST = settings(derandomize=True, max_examples=60, deadline=None, database=None)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3))
DAMAGE = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4)


@st.composite
def subspaces(draw) -> Subspace:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    dim = draw(st.integers(1, 12))
    features = torch.randn(draw(st.integers(2, 40)), dim, generator=generator)
    found = fit_subspace(features, provenance=draw(st.dictionaries(TEXT, JSON, max_size=3)), center=draw(st.booleans()))
    return found.without_mean() if draw(st.booleans()) else found


@st.composite
def records(draw) -> Record:
    cell = Cell(draw(TEXT), draw(TEXT), draw(st.integers(0, 5)), draw(st.integers(0, 2**32)))
    metrics = draw(st.dictionaries(TEXT, st.floats(allow_nan=False, allow_infinity=False), max_size=3))
    return Record(cell, draw(TEXT), metrics, draw(st.dictionaries(TEXT, JSON, max_size=2)))


def damaged(content: bytes, places: list[tuple[float, int]]) -> bytes:
    """Return the bytes with some of them changed."""
    changed = bytearray(content)
    for place, value in places:
        changed[int(place * len(changed))] = value
    return bytes(changed)


def equal(one: Subspace, other: Subspace) -> bool:
    means = (one.mean is None) == (other.mean is None) and (one.mean is None or torch.equal(one.mean, other.mean))
    parts = torch.equal(one.basis, other.basis) and torch.equal(one.eigenvalues, other.eigenvalues)
    facts = [(s.count, s.centered, dict(s.provenance)) for s in (one, other)]
    return means and parts and facts[0] == facts[1]


@FAST
@given(subspaces())
def test_a_subspace_comes_back(subspace):
    with tempfile.TemporaryDirectory() as folder:
        subspace.save(Path(folder) / "s")
        assert equal(Subspace.load(Path(folder) / "s"), subspace)


@FAST
@given(subspaces(), DAMAGE, st.floats(0, 1))
def test_a_damaged_subspace_file_is_refused_or_a_subspace_still(subspace, places, kept):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        subspace.save(path)
        whole = path.read_bytes()
        for content in (damaged(whole, places), whole[: int(kept * len(whole))]):
            path.write_bytes(content)
            try:
                found = Subspace.load(path)
            except UserError as error:
                assert len(str(error).splitlines()) == 1 and str(path) in str(error)
            else:  # a changed digit of a number: still an orthonormal, finite basis
                assert found.basis.shape[1] >= 1 and torch.isfinite(found.basis).all()


@FAST
@given(st.lists(records(), max_size=6))
def test_results_come_back_in_their_order_each_key_once(written):
    with tempfile.TemporaryDirectory() as folder:
        store = ResultsStore(folder)
        for record in written:
            store.append(record)
        expected = {}
        for record in written:
            expected.setdefault(record.key, record)
        assert ResultsStore(folder).records() == list(expected.values())


@FAST
@given(st.lists(records(), min_size=1, max_size=4, unique_by=lambda r: r.key), DAMAGE)
def test_damage_costs_no_record_but_those_of_its_lines(written, places):
    with tempfile.TemporaryDirectory() as folder:
        store = ResultsStore(folder)
        for record in written:
            store.append(record)
        whole = store.path.read_bytes()
        store.path.write_bytes(damaged(whole, places))
        before, after = whole.split(b"\n"), store.path.read_bytes().split(b"\n")
        found = ResultsStore(folder).records()
        if len(before) == len(after):
            untouched = [record for record, one, two in zip(written, before, after, strict=False) if one == two]
            assert all(record in found for record in untouched)
        assert all(record in written for record in found), "no number changes unnoticed"
        more = written[0]
        store.append(more)
        assert more in ResultsStore(folder).records(), "the store still takes results"
