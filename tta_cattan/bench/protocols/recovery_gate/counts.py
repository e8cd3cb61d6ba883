"""What a gate does at any threshold, from counts per agreement level: nothing is adapted or predicted again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tta_cattan.metrics import auroc
from tta_cattan.util.errors import UserError

# The first hypothesis; the same without its alignment (or input transformation); the untouched source model.
PREDICTORS = ("adapted", "bypass", "source")
ORIGINS = ("source", "target")


@dataclass(frozen=True)
class Gated:
    """Accuracies (fractions) on both kinds of samples before and after the gate, and how well it tells them apart."""

    tau: float
    fallback: str
    source_before: float
    source_after: float
    target_before: float
    target_after: float
    detection: float  # source samples that were taken as source
    false_alarms: float  # target samples that were taken as source


@dataclass(frozen=True)
class AgreementCounts:
    """Per origin and agreement level q = 0..K: the samples (``n``), and how many each predictor gets right."""

    counts: Mapping[str, Mapping[str, tuple[int, ...]]]

    @classmethod
    def of(cls, qbar: Tensor, k: int, is_source: Tensor, correct: Mapping[str, Tensor]) -> AgreementCounts:
        """Count n samples: their agreement, their origin, and which of them each predictor gets right."""
        level = (qbar * k).round().long()
        columns = {"n": torch.ones_like(is_source), **correct}
        counts = {}
        for origin, members in zip(ORIGINS, (is_source, ~is_source), strict=True):
            if not members.any():
                raise UserError(f"no {origin} sample is in the mix: recovery is measured on samples of both domains")
            counts[origin] = {
                name: tuple(torch.bincount(level[members & column], minlength=k + 1).tolist())
                for name, column in columns.items()
            }
        return cls(counts)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AgreementCounts:
        """Return the counts that ``to_dict`` gave, after a way through JSON."""
        return cls({origin: {name: tuple(row) for name, row in rows.items()} for origin, rows in data.items()})

    def to_dict(self) -> dict[str, dict[str, list[int]]]:
        """Return plain lists, for a results file."""
        return {origin: {name: list(row) for name, row in rows.items()} for origin, rows in self.counts.items()}

    @property
    def k(self) -> int:
        """The number of hypotheses."""
        return len(self.counts["source"]["n"]) - 1

    def thresholds(self) -> list[float]:
        """Return every tau that gates differently: ``0, 1/K, ..., 1`` (0 gates nothing, 1 all but the unanimous)."""
        return [level / self.k for level in range(self.k + 1)]

    def accuracy(self, origin: str, predictor: str) -> float:
        """Return a predictor's accuracy on all samples of an origin."""
        return sum(self.counts[origin][predictor]) / sum(self.counts[origin]["n"])

    def gate(self, tau: float, fallback: str) -> Gated:
        """Return what happens where ``qbar < tau`` takes the fall-back's prediction instead of the adapted one."""
        flagged = [level / self.k < tau for level in range(self.k + 1)]
        after, rate = {}, {}
        for origin in ORIGINS:
            rows = self.counts[origin]
            n = sum(rows["n"])
            right = sum(rows[fallback if out else "adapted"][level] for level, out in enumerate(flagged))
            after[origin] = right / n
            rate[origin] = sum(count for count, out in zip(rows["n"], flagged, strict=True) if out) / n
        return Gated(
            tau=tau,
            fallback=fallback,
            source_before=self.accuracy("source", "adapted"),
            source_after=after["source"],
            target_before=self.accuracy("target", "adapted"),
            target_after=after["target"],
            detection=rate["source"],
            false_alarms=rate["target"],
        )

    def auroc(self) -> float:
        """Return how well a low agreement tells a source sample: 0.5 is chance, 1 is perfect."""
        levels = torch.arange(self.k + 1)
        scores = [levels.repeat_interleave(torch.tensor(self.counts[origin]["n"])) for origin in ORIGINS]
        return auroc(-torch.cat(scores), torch.arange(sum(map(len, scores))) < len(scores[0]))
