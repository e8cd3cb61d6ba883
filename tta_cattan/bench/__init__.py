"""The bench: data sets, model zoo, source training, protocols, runs, results, report and the paper's studies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Domain:
    """One target data set of a benchmark: a corruption at a severity, or a named domain (severity 0)."""

    name: str
    severity: int = 0

    @property
    def label(self) -> str:
        """Return TENT's name, "gaussian_noise5", or the bare name if the severity is 0."""
        return f"{self.name}{self.severity}" if self.severity else self.name
