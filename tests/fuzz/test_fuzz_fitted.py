"""Subspace and moments files drawn at random and damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bad_files
import torch
from fuzzing import EDITS, EXACT, FAST, JSON, TEXT, damaged, folder, positive, taken, tensors
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from tta_cattan.alignment import SourceMoments, Subspace, fit_subspace
from tta_cattan.alignment.recolouring import Moments, matrix_power, recolouring, with_ridge
from tta_cattan.alignment.subspace import orthonormality_error


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
    for kind in ("first", "second") if draw(st.booleans()) else ("first",):
        parts[f"{kind}.mean"], parts[f"{kind}.whitener"] = draw(tensors((p,))), draw(tensors((p, n)))
    return parts, {"format": "tta-cattan-moments-4", "second": draw(st.sampled_from(['""', '"a"', "2"]))}


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
WHOLE = {"count": "9", "layer": '""', "provenance": "{}"}


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
    facts = [repr((s.count, s.centered, s.provenance, s.layer)) for s in (found, again)]  # NaN is not NaN
    assert facts[0] == facts[1]


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
    assert repr((found.count, found.provenance)) == repr((again.count, again.provenance))  # NaN is not NaN
    for signature in (found.first, found.second or found.first):
        assert signature.coordinates(torch.zeros(3, len(signature.mean))).shape == (3, signature.whitener.shape[1])
    assert all(value >= 0 for value in found.classes.values())
    for name, mean in found.mean.items():
        cov = with_ridge(found.cov[name])
        target = Moments(mean + 1, torch.eye(len(mean)), mean.abs(), mean.abs())
        made = recolouring(target, mean, found.cov[name], matrix_power(cov, 0.5), 0.5, 9)
        assert all(value.isfinite().all() for value in made)
