"""Domains as features of a frozen encoder, which ``tta-cattan extract-features`` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tta_cattan.data.benchmark import BENCHMARK_REGISTRY, Benchmark
from tta_cattan.data.feature_shards import MANIFEST, FeatureFolder, Manifest, open_features
from tta_cattan.data.stream import BatchedDataset
from tta_cattan.domain import Domain
from tta_cattan.errors import UserError


class FeatureRows(BatchedDataset):
    """The rows of a folder of features, read from disk batch by batch."""

    def __init__(self, folder: FeatureFolder, n: int = -1) -> None:
        self.folder = folder
        self.labels = torch.from_numpy(folder.labels if n < 0 else folder.labels[:n])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rows, labels = self.gather(torch.tensor([index]))
        return rows[0], labels[0]

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows (float32) and labels at ``indices``."""
        return torch.from_numpy(self.folder.rows(indices.numpy().astype(np.int64))), self.labels[indices]


@BENCHMARK_REGISTRY.register("features")
class Features(Benchmark):
    """``DATA_DIR/<domain>/`` as ``tta-cattan extract-features`` writes it: from DATA.SOURCE to DATA.TARGET."""

    images = False

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """The number of classes of the images that the features were taken from."""
        return len(self._manifest(self.cfg.DATA.SOURCE).classes)

    def every_domain(self) -> list[Domain]:
        """Return the domains that DATA_DIR has, by name."""
        return [Domain(path.parent.name) for path in sorted(Path(self.cfg.DATA_DIR).glob(f"*/{MANIFEST}"))]

    def domains(self) -> list[Domain]:
        """Return the one target domain."""
        return [Domain(self.cfg.DATA.TARGET)]

    def check(self) -> None:
        """Check that both domains are there, whole, and by one encoder over one list of classes."""
        source, target = (open_features(self._folder(self.cfg.DATA[key])).manifest for key in ("SOURCE", "TARGET"))
        for what, one, other in (
            ("the encoder", source.encoder, target.encoder),
            ("the length of the features", source.dim, target.dim),
            ("the list of classes", source.classes, target.classes),
        ):
            if one != other:
                raise UserError(
                    f"{what} differs between {source.domain} and {target.domain} in {self.cfg.DATA_DIR} "
                    f"({_difference(one, other)}): extract both with the same `tta-cattan extract-features` command"
                )

        self.check_features(source.dim)

    def target(self, domain: Domain) -> FeatureRows:
        """Return the features of a domain, or the first CORRUPTION.NUM_EX."""
        return FeatureRows(open_features(self._folder(domain.name)), self.cfg.CORRUPTION.NUM_EX)

    def source(self) -> FeatureRows:
        """Return the features of the source domain."""
        return FeatureRows(open_features(self._folder(self.cfg.DATA.SOURCE)))

    def describe_source(self) -> dict[str, Any]:
        return {"name": self.cfg.DATA.SOURCE, "sha256": open_features(self._folder(self.cfg.DATA.SOURCE)).sha256}

    def describe(self) -> dict[str, Any]:
        target = open_features(self._folder(self.cfg.DATA.TARGET))
        return {
            "name": "features",
            "encoder": target.manifest.encoder,
            "target": target.sha256,
            "num_ex": self.cfg.CORRUPTION.NUM_EX,
        }

    def _folder(self, domain: str) -> Path:
        folder = Path(self.cfg.DATA_DIR).resolve() / domain
        if not domain or not folder.is_dir():
            there = ", ".join(found.name for found in self.every_domain()) or "none"
            raise UserError(
                f"domain {domain!r} has no folder of features in {self.cfg.DATA_DIR} (there: {there}): make it once "
                "with `tta-cattan extract-features --cfg FILE --out DIR`, and set DATA_DIR to that DIR"
            )
        return folder

    def _manifest(self, domain: str) -> Manifest:
        return Manifest.read(self._folder(domain))


def _difference(one: Any, other: Any) -> str:
    """Return the first thing that two dicts, lists or values differ in."""
    if isinstance(one, dict):
        key = next(key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key))
        return f"{key}: {one.get(key)!s:.40} and {other.get(key)!s:.40}"
    if isinstance(one, list):
        lacking = sorted(set(one) ^ set(other))
        return f"{lacking[0]!r} is in one of them only" if lacking else "their order"
    return f"{one} and {other}"
