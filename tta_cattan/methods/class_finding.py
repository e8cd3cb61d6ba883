"""The target's classes, found in the features and predictions of all its samples after the last update."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tta_cattan.alignment import FeatureMoments, subspace_of_moments

FITTED_TO = 4096  # samples that the subspace of the classes is fitted to: the rest is only projected


class TargetSamples:
    """Coordinates and logits of the samples of a target, in the main directions of the first of them.

    Kept per sample are its ``d`` coordinates and its logits; one that is not finite has no say.
    """

    def __init__(self, directions: int) -> None:
        self.directions = directions
        self.basis: Tensor | None = None  # D x d
        self._waiting: list[Tensor] = []  # features, until there are enough to fit the basis to
        self._coordinates: list[Tensor] = []
        self._logits: list[Tensor] = []
        self._finite: list[Tensor] = []

    def add(self, logits: Tensor, features: Tensor) -> None:
        """Take in the logits (n x C) and features (n x D) of a batch."""
        finite = logits.isfinite().all(1) & features.isfinite().all(1)
        self._finite.append(finite)
        self._logits.append(logits[finite])
        if self.basis is not None:
            self._coordinates.append(features[finite] @ self.basis)
            return
        self._waiting.append(features[finite])
        if sum(map(len, self._waiting)) >= FITTED_TO:
            self._fit()

    def _fit(self) -> None:
        moments = FeatureMoments(self._waiting[0].shape[1], self._waiting[0].device)
        for features in self._waiting:
            moments.update(features.float())
        d = min(self.directions, moments.sample_count() - 1, self._waiting[0].shape[1])
        self.basis = subspace_of_moments(moments, d).basis.to(self._waiting[0])
        self._coordinates = [features @ self.basis for features in self._waiting]
        self._waiting = []

    def coordinates(self) -> Tensor:
        """Return the coordinates (n x d) of all samples; of fewer than two there is no subspace and there are none."""
        if self.basis is None and sum(map(len, self._waiting)) >= 2:
            self._fit()
        return torch.cat(self._coordinates) if self._coordinates else torch.empty(0, 0)

    def logits(self) -> Tensor:
        """Return the logits (n x C)."""
        return torch.cat(self._logits)

    def changed(self, before: Iterable[Tensor]) -> float:
        """Return the share of the samples whose class was another in ``before``, batch by batch."""
        now = self.logits().argmax(1).cpu()
        then = torch.cat([b[f.cpu()] for b, f in zip((b.cpu() for b in before), self._finite, strict=True)])
        return (now != then).double().mean().item()
