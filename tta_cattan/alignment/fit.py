"""Fitting a subspace to features that stream by, or to a classifier alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from tta_cattan.alignment.moments import FeatureMoments
from tta_cattan.alignment.subspace import Subspace
from tta_cattan.util.errors import UserError

logger = logging.getLogger(__name__)


def fit_subspace(
    features: Tensor | Iterable[Tensor],
    d: int | None = None,
    center: bool = True,
    provenance: Mapping[str, Any] | None = None,
) -> Subspace:
    """Fit the ``d`` principal directions of ``features`` (n x D, or batches of rows) in one pass.

    ``center=True`` is PCA (eigenvectors of the covariance), ``center=False`` an uncentred truncated SVD (eigenvectors
    of the second moment). ``d=None`` keeps every direction that the samples determine.
    """
    moments: FeatureMoments | None = None
    for batch in [features] if isinstance(features, Tensor) else features:
        if moments is None:
            if not isinstance(batch, Tensor):
                raise UserError(
                    f"features are {type(batch).__name__}: give a tensor (n, D), or batches that are tensors"
                )
            if batch.ndim != 2:
                raise UserError(f"features have shape {tuple(batch.shape)}: expected rows, (n, D)")
            moments = FeatureMoments(batch.shape[1], batch.device)
        moments.update(batch)
    if moments is None:
        raise UserError("no features to fit a subspace to: the data set or the iterable is empty")
    return subspace_of_moments(moments, d, center, provenance)


def subspace_of_moments(
    moments: FeatureMoments,
    d: int | None = None,
    center: bool = True,
    provenance: Mapping[str, Any] | None = None,
) -> Subspace:
    """Return the ``d`` leading eigenvectors of the covariance (or second moment) of ``moments``."""
    rows = moments.few_rows()
    moments.flush()
    # Centring takes one degree of freedom: n samples span n - 1 directions around their mean.
    most = min(moments.dim, moments.count - 1 if center else moments.count)
    if most < 1:
        raise UserError(f"{moments.count} sample(s) do not determine a subspace: at least 2 are needed")
    d = most if d is None else d
    if not 1 <= d <= most:
        raise UserError(
            f"d = {d} directions cannot be fitted to {moments.count} samples of {moments.dim} features: "
            f"d must be in 1..{most}; lower d or give more samples"
        )
    if rows is None:
        values, vectors = torch.linalg.eigh(moments.products(center), UPLO="U")
    else:
        values, vectors = _eigh_of_rows(rows.double() - (moments.mean if center else 0))
    values = values.flip(0).clamp_min(0.0) / (moments.count - 1 if center else moments.count)
    if values[0] <= 1e-12 * moments.mean.square().max() or values[0] == 0:
        raise UserError(
            f"all {moments.count} samples have the same features: there is no direction to fit. "
            "Check that the model and the data vary"
        )
    rank = int((values > 1e-12 * values[0]).sum())
    if rank < d:
        logger.warning(
            "features vary in %d directions only: the last %d of the d = %d fitted are arbitrary", rank, d - rank, d
        )
    return Subspace(
        basis=vectors[:, -d:].flip(1).float().contiguous(),
        eigenvalues=values[:most].float(),
        mean=moments.mean.float(),
        count=moments.count,
        centered=center,
        provenance=dict(provenance or {}),
    )


def _eigh_of_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the n eigenvalues (ascending) and eigenvectors of ``Z^T Z`` for n rows of more features, O(n^2 D).

    With ``Z^T = Q R`` they are those of the n x n matrix ``R R^T``, and ``Q`` times its vectors.
    """
    q, r = torch.linalg.qr(rows.T)
    values, vectors = torch.linalg.eigh(r @ r.T)
    return values, q @ vectors


def classifier_subspace(weight: Tensor) -> Subspace:
    """Return the row space of a classifier's weight (C x D) as a source subspace that needs no source data.

    Only the component of a feature in that row space reaches the logits. The softmax does not see a shift common to
    all classes either, but the logits do, so the basis keeps the whole row space: ``W W^T H^T = H^T``.
    """
    _, singular, directions = torch.linalg.svd(weight.detach().cpu().double(), full_matrices=False)
    rank = int((singular > singular[0] * max(weight.shape) * torch.finfo(torch.float32).eps).sum())
    if rank == 0:
        raise UserError("the classifier's weight is zero: its row space is empty. Check the checkpoint")
    return Subspace(
        basis=directions[:rank].T.float().contiguous(),
        eigenvalues=singular.square().float(),
        mean=None,
        count=0,
        centered=False,
        provenance={"source": "row space of the classifier"},
    )
