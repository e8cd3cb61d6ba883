"""The online tracker against the batch fit of everything it saw."""

from __future__ import annotations

import pytest
import torch

from tta_cattan.alignment import SubspaceTracker, classifier_subspace, fit_subspace, orthonormality_error
from tta_cattan.alignment.tracker import turn_towards
from tta_cattan.util.errors import UserError


def low_rank(n: int, seed: int, dim: int = 30, rank: int = 6, offset: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(rank, dim, generator=generator)
    return torch.randn(n, rank, generator=generator) @ mixing + offset * torch.randn(dim, generator=generator)


def span_error(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest part of a direction of ``a`` that lies outside the span of ``b``."""
    return (a - b @ (b.T @ a)).norm(dim=0).max().item()


@pytest.mark.parametrize("center", [True, False])
def test_equals_the_batch_fit_when_nothing_is_cut_off(center):
    source, target = low_rank(200, 0), low_rank(400, 1)
    start = fit_subspace(source, 6, center)
    tracker = SubspaceTracker(start, d=20, center=center, prior=0.0)
    for batch in target.split(32):
        tracker.update(batch)
    rank = 6 if center else 7
    whole = fit_subspace(target, rank, center)
    leading = tracker.basis[:, tracker.energy.argsort(descending=True)[:rank]]
    assert span_error(leading, whole.basis) < 1e-3
    scatter = whole.eigenvalues[:rank] * (399 if center else 400)
    torch.testing.assert_close(tracker.energy.sort(descending=True).values[:rank], scatter, rtol=1e-3, atol=1e-2)


def test_starts_from_the_source_and_survives_a_batch_of_one():
    start = fit_subspace(low_rank(200, 0), 6)
    tracker = SubspaceTracker(start, d=6)
    basis = tracker.update(low_rank(1, 1))
    assert orthonormality_error(basis) < 1e-5
    assert basis.shape == (30, 6)
    # 1 sample against 200: at most one direction has moved away from the source's.
    assert torch.linalg.svdvals(basis.T @ start.basis)[4] > 0.99


def test_moves_from_source_to_target():
    source, target = low_rank(500, 0), low_rank(5000, 1)
    tracker = SubspaceTracker(fit_subspace(source, 6), d=6)
    goal = fit_subspace(target, 6).basis
    errors = [span_error(tracker.update(batch), goal) for batch in target.split(500)]
    assert errors[-1] < 0.2 < errors[0]


def test_decay_forgets_an_earlier_domain():
    first, second = low_rank(2000, 1), low_rank(600, 2)
    goal = fit_subspace(second, 6).basis
    error = {}
    for decay in (1.0, 0.5):
        tracker = SubspaceTracker(fit_subspace(low_rank(500, 0), 6), d=6, decay=decay)
        for batch in torch.cat([first, second]).split(100):
            basis = tracker.update(batch)
        error[decay] = span_error(basis, goal)
    assert error[0.5] < 0.3 * error[1.0]


def test_stays_orthonormal_over_many_updates():
    tracker = SubspaceTracker(fit_subspace(low_rank(300, 0), 6), d=6, decay=0.9)
    for seed in range(300):
        basis = tracker.update(low_rank(8, seed % 5))
    assert orthonormality_error(basis) < 1e-5


def test_from_a_classifier_with_more_directions_than_classes():
    start = classifier_subspace(torch.randn(4, 30))
    tracker = SubspaceTracker(start, d=10)
    assert span_error(start.basis, tracker.basis) < 1e-5
    target = low_rank(64, 1)
    basis = tracker.update(target)
    assert span_error(fit_subspace(target, 6).basis, basis) < 1e-3


def test_turn_towards_keeps_the_span_and_the_coordinates():
    basis = torch.linalg.qr(torch.randn(20, 5))[0]
    rotated = basis @ torch.linalg.qr(torch.randn(5, 5))[0]
    torch.testing.assert_close(turn_towards(rotated, basis), basis, atol=1e-5, rtol=0)


def test_dimension_out_of_range():
    with pytest.raises(UserError, match=r"1\.\.30"):
        SubspaceTracker(fit_subspace(low_rank(50, 0), 6), d=31)


def test_coordinates_stay_still_over_many_updates():
    tracker = SubspaceTracker(fit_subspace(low_rank(300, 0), 6), d=6)
    target = low_rank(3000, 1)
    bases = [tracker.update(batch) for batch in target.split(100)]
    # Once the span has settled, each basis must be the last one again, column by column.
    for before, after in zip(bases[-6:], bases[-5:], strict=False):
        assert (before.T @ after).diagonal().min() > 0.99


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("classifier", [True, False])
def test_single_samples_keep_the_basis_orthonormal(center, classifier):
    generator = torch.Generator().manual_seed(0)
    start = classifier_subspace(torch.randn(5, 16, generator=generator))
    if not classifier:
        start = fit_subspace(torch.randn(50, 16, generator=generator), center=center)
    tracker = SubspaceTracker(start, 6, center)
    for _ in range(40):
        basis = tracker.update(torch.randn(1, 16, generator=generator))
        assert orthonormality_error(basis) < 1e-5
    assert orthonormality_error(tracker.update(torch.zeros(3, 16))) < 1e-5
