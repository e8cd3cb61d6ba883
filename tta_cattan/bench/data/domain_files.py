"""Domains that are one array file each."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

from torch.utils.data import TensorDataset

from tta_cattan.bench.data.adaptation import DomainBenchmark
from tta_cattan.bench.data.arrays import first
from tta_cattan.bench.domain import Domain
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_file


class DomainFiles(DomainBenchmark):
    """``DATA_DIR/<domain><ending>`` holds all samples of a domain."""

    ending: str
    layout: str  # what DATA_DIR must hold, for who lacks it

    @abstractmethod
    def load(self, path: Path) -> TensorDataset:
        """Return the samples of a domain's file."""

    def check(self) -> None:
        """Check that the files of the source and of the targets are there."""
        for name in (self.source_domain, *(domain.name for domain in self.domains())):
            if not self._path(name).is_file():
                raise UserError(f"{self._path(name)} does not exist; DATA_DIR must hold {self.layout}")

    def target(self, domain: Domain) -> TensorDataset:
        """Return all samples of a target domain, or the first CORRUPTION.NUM_EX."""
        return first(self.load(self._path(domain.name)), self.cfg.CORRUPTION.NUM_EX)

    def source(self) -> TensorDataset:
        """Return all samples of the source domain."""
        return self.load(self._path(self.source_domain))

    def describe_source(self) -> dict[str, Any]:
        return {"name": self.source_domain, "sha256": sha256_file(self._path(self.source_domain))}

    def describe(self) -> dict[str, Any]:
        paths = [self._path(name) for name in self.short_names]
        return {"name": self.name, "files": {path.stem: sha256_file(path) for path in paths if path.is_file()}}

    def _path(self, domain: str) -> Path:
        return Path(self.cfg.DATA_DIR) / f"{domain}{self.ending}"
