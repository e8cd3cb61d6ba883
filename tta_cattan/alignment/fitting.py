"""Fitting a subspace: to streaming moments of features (one pass, O(D^2) memory), or as a classifier's row space."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.linalg import get_blas_funcs
from torch import Tensor, nn

from tta_cattan import __version__
from tta_cattan.alignment.subspace import Subspace, float64_device, sha256_weights
from tta_cattan.network.layers import find_classifier, iterate_features, keeping_modes
from tta_cattan.network.ownership import require_plain
from tta_cattan.util.batches import ReadBatches
from tta_cattan.util.errors import UserError

logger = logging.getLogger(__name__)

Fitted = TypeVar("Fitted", bound=Any)  # a dataclass with ``provenance``


# Rows buffered before they are added to the float64 sums, at least and per feature: with fewer, the D x D additions
# would cost as much as the products; with more, the buffer would need more memory than the sums.
_ROWS, _ROWS_PER_FEATURE = 1024, 4
_ROWS_OF_SUMS = 256  # rows of the triangle added at a time
_ROWS_IN_CACHE = 512  # rows per product on the CPU, few enough that their centred copy stays in the cache


class FeatureMoments:
    """Count, mean and scatter ``sum_i (z_i - mean)(z_i - mean)^T`` of the rows seen so far.

    Batches are centred on their own mean before the product and merged by Chan's formula, so a large common offset
    costs no precision. Only the upper triangle of the symmetric ``scatter`` is kept.
    """

    def __init__(self, dim: int, device: torch.device | str = "cpu") -> None:
        self.device = float64_device(torch.device(device))
        self.dim = dim
        self.count = 0
        self.mean = torch.zeros(dim, dtype=torch.float64, device=self.device)
        self.scatter = torch.zeros(dim, dim, dtype=torch.float64, device=self.device)
        self._rows = max(_ROWS, _ROWS_PER_FEATURE * dim)
        self._waiting: list[Tensor] = []
        self._n_waiting = 0

    def update(self, features: Tensor) -> None:
        """Add a batch of rows (n x D); non-finite values are rejected before they can corrupt the sums."""
        if features.ndim != 2 or features.shape[1] != self.dim:
            raise UserError(f"features have shape {tuple(features.shape)}: expected (n, {self.dim})")
        chunks = features.detach().split(self._rows)
        for number, chunk in enumerate(chunks):
            self._check_finite(chunk, self.count + self._n_waiting + number * self._rows)
        for chunk in chunks:
            # float16 would overflow in the product, and bfloat16 would lose precision.
            self._waiting.append(chunk.to(self.device, torch.promote_types(chunk.dtype, torch.float32)))
            self._n_waiting += len(chunk)
            if self._n_waiting >= self._rows:
                self.flush()

    def _check_finite(self, rows: Tensor, first: int) -> None:
        """Reject NaN and Inf; ``first`` is the index of the first row."""
        if torch.isfinite(rows.sum()):  # finite rows may overflow, but NaN or Inf never gives a finite sum
            return
        bad = (~torch.isfinite(rows)).any(1).nonzero()
        if len(bad):
            raise UserError(
                f"features of sample {first + int(bad[0])} hold NaN or Inf: "
                "check the model's outputs and the input normalisation"
            )

    def waiting(self) -> Tensor:
        """Return the rows that are not in the sums yet; added again, they give the same sums bit for bit."""
        return torch.cat(self._waiting) if self._waiting else self.mean.new_zeros(0, self.dim, dtype=torch.float32)

    def sample_count(self) -> int:
        """Return the number of rows seen, including those not in the sums yet."""
        return self.count + self._n_waiting

    def flush(self) -> None:
        """Add the buffered rows to the sums."""
        if not self._n_waiting:
            return
        rows = self._waiting[0] if len(self._waiting) == 1 else torch.cat(self._waiting)
        self._waiting, self._n_waiting = [], 0
        mean = rows.mean(0)
        products, rest = _centred_products(rows, mean)
        for first in range(0, self.dim, _ROWS_OF_SUMS):
            upper = slice(first, first + _ROWS_OF_SUMS), slice(first, None)
            self.scatter[upper].add_(products[upper])
        # The mean was rounded to the rows' dtype, so the remainder is added back. Chan's formula adds the scatter
        # between the two means.
        total = self.count + len(rows)
        shift = mean.double() + rest - self.mean
        both = torch.stack([rest, shift])
        weights = both.new_tensor([-len(rows), self.count * len(rows) / total])
        self.scatter.addmm_(both.T * weights, both)
        self.mean += shift * (len(rows) / total)
        self.count = total

    def products(self, center: bool) -> Tensor:
        """Return the upper triangle of ``sum_i (z_i - mean)(z_i - mean)^T``, or of ``sum_i z_i z_i^T`` (float64)."""
        self.flush()
        return self.scatter if center else torch.addr(self.scatter, self.mean, self.mean, alpha=self.count)


def _centred_products(rows: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``sum_i (z_i - m)(z_i - m)^T``, its upper triangle at least, and the mean of ``z_i - m`` (float64).

    Note: on the CPU, the BLAS routine ``syrk``, which torch does not call, does half the work of a full product.
    """
    if rows.device.type != "cpu":
        centred = rows - mean
        return centred.T @ centred, centred.mean(0).double()
    # Only numpy and BLAS: torch's threads would keep waiting on the cores that the BLAS threads need.
    values, centre = rows.numpy(), mean.numpy()
    syrk, total = get_blas_funcs("syrk", dtype=values.dtype), np.zeros(len(centre))
    # BLAS is column-major: its lower triangle is our upper one.
    products = np.zeros((len(centre), len(centre)), values.dtype, order="F")
    buffer = np.empty((min(len(values), _ROWS_IN_CACHE), len(centre)), values.dtype)
    for start in range(0, len(values), _ROWS_IN_CACHE):
        part = values[start : start + _ROWS_IN_CACHE]
        centred = np.subtract(part, centre, out=buffer[: len(part)])
        total += centred.sum(0)
        products = syrk(1.0, centred.T, beta=1.0, c=products, lower=True, overwrite_c=True)
    return torch.from_numpy(products.T), torch.from_numpy(total) / len(rows)


def fit_subspace(
    features: Tensor | Iterable[Tensor],
    d: int | None = None,
    center: bool = True,
    provenance: Mapping[str, Any] | None = None,
    layer: str | None = None,
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
    return subspace_of_moments(moments, d, center, provenance, layer)


def subspace_of_moments(
    moments: FeatureMoments,
    d: int | None = None,
    center: bool = True,
    provenance: Mapping[str, Any] | None = None,
    layer: str | None = None,
) -> Subspace:
    """Return the ``d`` leading eigenvectors of the covariance (or second moment) of ``moments``."""
    few = moments.count == 0 and 2 * moments.sample_count() <= moments.dim
    rows = moments.waiting() if few else None
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
        layer=layer,
    )


def _eigh_of_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return n eigenvalues (ascending) and eigenvectors of ``Z^T Z`` for n rows with more features than rows, O(n^2 D).

    With ``Z^T = Q R``, they are the eigenvalues of the n x n matrix ``R R^T``, and ``Q`` times its eigenvectors.
    """
    q, r = torch.linalg.qr(rows.T)
    values, vectors = torch.linalg.eigh(r @ r.T)
    return values, q @ vectors


def classifier_subspace(weight: Tensor) -> Subspace:
    """Return the row space of a classifier's weight (C x D) as a source subspace that needs no source data.

    Only the component of a feature in that row space reaches the logits. The softmax also ignores a shift common to
    all classes, but the logits do not, so the basis keeps the whole row space: ``W W^T H^T = H^T``.
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


def from_loader(fit: Callable[..., Fitted]) -> Callable[..., Fitted]:
    """Let ``fit(model, inputs, ...)`` take any loader, preserve the model's modes, and record the model in its result.

    A loader yields images, (images, labels) or (indices, images).
    """

    @functools.wraps(fit)
    def fitted(model: nn.Module, loader: Iterable[Any], *args: Any, **options: Any) -> Fitted:
        require_plain(model)
        with keeping_modes(model), torch.inference_mode(False):
            inputs = (x for _, x in ReadBatches(loader, next(model.parameters()).device))
            found = fit(model, inputs, *args, **options)
        named = {"weights_sha256": sha256_weights(model), "model": type(model).__name__, "tta-cattan": __version__}
        return found if found.provenance else replace(found, provenance=named)

    return fitted


@from_loader
def fit_source(
    model: nn.Module,
    loader: Iterable[Any],
    layer: str | None = None,
    d: int | None = None,
    classifier: str = "",
    center: bool = True,
) -> Subspace:
    """Fit the source subspace of ``model`` to source images in one pass over batches of images or (images, labels).

    The features are the input of the classifier (named by ``classifier`` if it is not the last linear layer), or the
    output of ``layer``. ``d=None`` keeps every direction that the samples determine. The model is not changed.
    """
    name = "" if layer else find_classifier(model, classifier)
    return fit_subspace(iterate_features(model, name, loader, layer or ""), d, center, layer=layer or "")
