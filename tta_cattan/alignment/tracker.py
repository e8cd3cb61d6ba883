"""Tracking the target subspace from a stream of batches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tta_cattan.alignment.subspace import Subspace, float64_device, reorthonormalize
from tta_cattan.util.errors import UserError
from tta_cattan.util.state import stateful

_REPAIR_EVERY = 64  # updates between two re-orthonormalisations: float32 drifts by about 1e-7 a step


@stateful
class SubspaceTracker:
    """The d leading directions of all batches seen so far, updated batch by batch in O(D (d + B)^2).

    It starts from ``start`` (the source subspace), which counts as ``prior`` samples: with few target samples the
    missing directions stay the source's, so the first batch causes no rank problem. Before each batch the past is
    weighted by ``decay`` (1 = never forgets). The past is stored as ``basis diag(energy) basis^T``, its (decayed)
    scatter; a batch is split into its part inside the basis and the rest, and a (d + B)-sized eigenproblem gives the
    new basis.
    """

    def __init__(self, start: Subspace, d: int, center: bool = True, decay: float = 1.0, prior: float = 200.0) -> None:
        if not 1 <= d <= start.dim:
            raise UserError(f"d = {d}: the features have {start.dim} dimensions, so d must be in 1..{start.dim}")
        # The sums need float64, which MPS does not have: there the tracker runs on the CPU.
        start = start.to(float64_device(start.basis.device))
        self.center = center
        self.decay = decay
        self.basis = _complete(start.basis, d)  # the principal directions, in the order of ``energy``
        self.turned = self.basis  # the same span, in the coordinates last returned
        self.energy = torch.zeros(d, device=start.basis.device)
        # The mean is the target's alone: merged with the source's, the shift between the two domains would be mistaken
        # for a direction in which the target varies.
        self.count = 0.0
        self.mean = torch.zeros(start.dim, device=start.basis.device)
        known = min(d, start.d, len(start.eigenvalues))
        # A subspace without samples (the classifier's row space) has no spectrum on the features' scale:
        # it only fills the directions that no batch has covered yet.
        if start.count:
            self.energy[:known] = prior * start.eigenvalues[:known]
        self.updates = 0

    def update(self, features: Tensor) -> Tensor:
        """Add a batch of features (B x D) and return the new basis (D x d), rotated towards the last one."""
        rows = features.detach().to(self.basis)
        old = self.basis
        if self.center:
            rows = self._centred(rows)
        else:
            self.count = self.decay * self.count + len(rows)
        if len(rows) > rows.shape[1]:  # feature maps: the triangular factor has the same scatter in fewer rows
            rows = torch.linalg.qr(rows, mode="r").R
        inside = rows @ old
        q, outside = _new_directions(rows - inside @ old.T, old, rows.square().sum())
        d, extra = old.shape[1], q.shape[1]
        small = torch.zeros(d + extra, d + extra, dtype=torch.float64, device=old.device)
        small.diagonal()[:d] = self.decay * self.energy.double()
        coordinates = torch.cat([inside.double(), outside], 1)
        small += coordinates.T @ coordinates
        # Directions without energy tie at zero: a tiny bonus gives the old ones precedence.
        small.diagonal()[:d] += 1e-9 * small.diagonal().max()
        values, vectors = torch.linalg.eigh(small)
        leading = vectors[:, -d:].to(old.dtype)
        self.energy = values[-d:].clamp_min(0).to(old.dtype)
        self.basis = old @ leading[:d] + q @ leading[d:]
        self.updates += 1
        if self.updates % _REPAIR_EVERY == 0:
            self.basis = reorthonormalize(self.basis)
        self.turned = turn_towards(self.basis, self.turned)
        return self.turned

    def _centred(self, rows: Tensor) -> Tensor:
        """Update the mean; return the centred rows, plus a row for what the mean's shift adds to the scatter."""
        n, m = self.decay * self.count, len(rows)
        batch_mean = rows.mean(0)
        shift = batch_mean - self.mean
        self.mean = self.mean + shift * (m / (n + m))
        self.count = n + m
        return torch.cat([rows - batch_mean, math.sqrt(n * m / (n + m)) * shift[None]])


def _new_directions(outside: Tensor, basis: Tensor, energy: Tensor) -> tuple[Tensor, Tensor]:
    """Return an orthonormal basis (D x e) of the rows' part outside ``basis``, and their coordinates in it (float64).

    Note: rounding errors are no directions: only those with more than 1e-10 of the energy are kept. Otherwise a single
    centred sample, whose rows are all zero except one, would add arbitrary directions.
    """
    outside = (outside - (outside @ basis) @ basis.T).double()  # the second projection removes the rounding errors
    values, vectors = torch.linalg.eigh(outside @ outside.T)
    kept = values > 1e-10 * energy
    scale = values[kept].sqrt()
    return (outside.T @ (vectors[:, kept] / scale)).to(basis.dtype), vectors[:, kept] * scale


def turn_towards(basis: Tensor, reference: Tensor) -> Tensor:
    """Return the basis of the same span that is closest to ``reference`` (orthogonal Procrustes).

    Note: only the span matters to the alignment; stable coordinates keep ``Phi`` and the optimiser's moments meaningful
    while the basis moves.
    """
    u, _, vh = torch.linalg.svd((basis.T @ reference).double())
    return basis @ (u @ vh).to(basis.dtype)


def _complete(basis: Tensor, d: int) -> Tensor:
    """Return an orthonormal basis of d columns: the first d of ``basis``, completed by random ones if needed."""
    if d <= basis.shape[1]:
        return basis[:, :d].clone()
    generator = torch.Generator().manual_seed(0)
    fill = torch.randn(basis.shape[0], d - basis.shape[1], generator=generator).to(basis)
    return reorthonormalize(torch.cat([basis, fill], 1))
