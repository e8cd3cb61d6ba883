"""Streaming moments of features: one pass, memory O(D^2) whatever the number of samples."""

from __future__ import annotations

import torch
from torch import Tensor

from tta_cattan.errors import UserError

# Rows gathered before one matrix product, at least and per feature: with fewer the D x D additions would cost as much
# as the product, and with more the rows would need more memory than the sums.
_ROWS, _ROWS_PER_FEATURE = 1024, 2


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
        self._rows = max(_ROWS, _ROWS_PER_FEATURE * dim)
        self._waiting: list[Tensor] = []
        self._n_waiting = 0

    def update(self, features: Tensor) -> None:
        """Absorb a batch of rows (n x D); a non-finite value is refused before it can spoil the sums."""
        if features.ndim != 2 or features.shape[1] != self.dim:
            raise UserError(f"features have shape {tuple(features.shape)}: expected (n, {self.dim})")
        chunks = features.detach().split(self._rows)
        for number, chunk in enumerate(chunks):
            self._check_finite(chunk, self.count + self._n_waiting + number * self._rows)
        for chunk in chunks:
            # float16 would overflow in the product, and bfloat16 lose it.
            self._waiting.append(chunk.to(self.device, torch.promote_types(chunk.dtype, torch.float32)))
            self._n_waiting += len(chunk)
            if self._n_waiting >= self._rows:
                self.flush()

    def _check_finite(self, rows: Tensor, first: int) -> None:
        """Refuse NaN and Inf; ``first`` is the number of the first row."""
        if torch.isfinite(rows.sum()):  # the sum of finite rows can overflow, that of others cannot be finite
            return
        bad = (~torch.isfinite(rows)).any(1).nonzero()
        if len(bad):
            raise UserError(
                f"features of sample {first + int(bad[0])} hold NaN or Inf: "
                "check the model's outputs and the input normalisation"
            )

    def waiting(self) -> Tensor:
        """Return the rows that are not in the sums yet: absorbed again, they give the same sums bit for bit."""
        return torch.cat(self._waiting) if self._waiting else self.mean.new_zeros(0, self.dim, dtype=torch.float32)

    def flush(self) -> None:
        """Fold the rows that are waiting into the sums."""
        if not self._n_waiting:
            return
        rows = self._waiting[0] if len(self._waiting) == 1 else torch.cat(self._waiting)
        self._waiting, self._n_waiting = [], 0
        mean = rows.mean(0, dtype=torch.float64)
        centred = rows - mean.to(rows.dtype)
        # The subtraction rounds the mean to the rows' dtype; what is left of it is put back exactly.
        rest = centred.mean(0, dtype=torch.float64)
        self.scatter += centred.T @ centred
        self.scatter.addr_(rest, rest, alpha=-len(rows))
        self._merge_means(len(rows), mean)

    def _merge_means(self, count: int, mean: Tensor) -> None:
        """Add what lies between the two means to the scatter (Chan's formula)."""
        total = self.count + count
        shift = mean - self.mean
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
