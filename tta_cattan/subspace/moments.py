"""Streaming moments of features: one pass, memory O(D^2) whatever the number of samples."""

from __future__ import annotations

import torch
from torch import Tensor

from tta_cattan.errors import UserError

_ROWS = 1024  # rows gathered before one matrix product: small batches would be bound by the D x D addition


def float64_device(device: torch.device) -> torch.device:
    """Return ``device``, or the CPU where it has no float64 (MPS)."""
    return torch.device("cpu") if device.type == "mps" else device


class FeatureMoments:
    """Count, mean and scatter ``sum_i (z_i - mean)(z_i - mean)^T`` of the rows seen so far.

    Batches are centred on their own mean before the product and merged by Chan's formula, so a large common offset
    does not eat the precision.
    """

    def __init__(self, dim: int, device: torch.device | str = "cpu") -> None:
        self.device = float64_device(torch.device(device))
        self.dim = dim
        self.count = 0
        self.mean = torch.zeros(dim, dtype=torch.float64, device=self.device)
        self.scatter = torch.zeros(dim, dim, dtype=torch.float64, device=self.device)
        self._waiting: list[Tensor] = []
        self._n_waiting = 0

    def update(self, features: Tensor) -> None:
        """Absorb a batch of rows (n x D); a non-finite value is refused before it can spoil the sums."""
        if features.ndim != 2 or features.shape[1] != self.dim:
            raise UserError(f"features have shape {tuple(features.shape)}: expected (n, {self.dim})")
        # float16 would overflow in the product, and bfloat16 lose it.
        rows = features.detach().to(self.device, torch.promote_types(features.dtype, torch.float32))
        if not torch.isfinite(rows).all():
            bad = int((~torch.isfinite(rows)).any(1).nonzero()[0])
            raise UserError(
                f"features of sample {self.count + self._n_waiting + bad} hold NaN or Inf: "
                "check the model's outputs and the input normalisation"
            )
        self._waiting.append(rows)
        self._n_waiting += len(rows)
        if self._n_waiting >= _ROWS:
            self.flush()

    def flush(self) -> None:
        """Fold the rows that are waiting into the sums."""
        if not self._n_waiting:
            return
        rows = torch.cat(self._waiting)
        self._waiting, self._n_waiting = [], 0
        mean = rows.mean(0, dtype=torch.float64)
        centred = rows - mean.to(rows.dtype)
        # The subtraction rounds the mean to the rows' dtype; what is left of it is put back exactly.
        rest = centred.mean(0, dtype=torch.float64)
        scatter = (centred.T @ centred).double() - len(rows) * torch.outer(rest, rest)
        self._merge(len(rows), mean, scatter)

    def _merge(self, count: int, mean: Tensor, scatter: Tensor) -> None:
        total = self.count + count
        shift = mean - self.mean
        self.scatter += scatter
        self.scatter.addr_(shift, shift, alpha=self.count * count / total)
        self.mean += shift * (count / total)
        self.count = total

    def covariance(self) -> Tensor:
        """Return ``scatter / (n - 1)`` (float64)."""
        self.flush()
        return self.scatter / max(self.count - 1, 1)

    def second_moment(self) -> Tensor:
        """Return ``1/n sum_i z_i z_i^T`` (float64)."""
        self.flush()
        return self.scatter / max(self.count, 1) + torch.outer(self.mean, self.mean)
