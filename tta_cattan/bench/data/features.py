"""Domains as features of a frozen encoder, in the folders that feature extraction writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tta_cattan.bench.data.adaptation import DomainBenchmark
from tta_cattan.bench.data.benchmark import BENCHMARK_REGISTRY
from tta_cattan.bench.data.feature_shards import MANIFEST, FeatureFolder, Manifest, content_hash, open_features
from tta_cattan.bench.data.stream import BatchedDataset
from tta_cattan.bench.domain import Domain
from tta_cattan.util.errors import UserError


class FeatureRows(BatchedDataset):
    """The rows of a folder of features, read from disk batch by batch."""

    def __init__(self, folder: FeatureFolder) -> None:
        self.folder = folder
        self.labels = torch.from_numpy(folder.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rows, labels = self.gather(torch.tensor([index]))
        return rows[0], labels[0]

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows (float32) and labels at ``indices``."""
        return torch.from_numpy(self.folder.rows(indices.numpy().astype(np.int64))), self.labels[indices]


@BENCHMARK_REGISTRY.register("features")
class Features(DomainBenchmark):
    """``DATA_DIR/<domain>/``, each a folder of feature shards."""

    images = False

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """The number of classes of the images that the features were taken from."""
        return len(self.class_names())

    @property
    def short_names(self) -> dict[str, str]:  # type: ignore[override]
        """The domains of DATA.DOMAINS, or all in DATA_DIR: the initial where it is unique, else the name."""
        names = self.cfg.DATA.DOMAINS or [
            path.parent.name for path in sorted(Path(self.cfg.DATA_DIR).glob(f"*/{MANIFEST}"))
        ]
        if not names:
            raise UserError(
                f"DATA_DIR = {self.cfg.DATA_DIR!r} holds no features: extract them once with `tta-cattan "
                "extract-features --cfg FILE --out DIR`, and set DATA_DIR to that DIR"
            )
        initials = [name[0].upper() for name in names]
        return {n: i if initials.count(i) == 1 else n for n, i in zip(names, initials, strict=True)}

    def class_names(self) -> list[str]:
        """Return the names of the classes of the images that the features were taken from."""
        return Manifest.read(self._folder(self.source_domain)).classes

    def check(self) -> None:
        """Check that all domains are there, complete, and of one encoder and one list of classes."""
        source = open_features(self._folder(self.source_domain)).manifest
        for domain in self.domains():
            self._check_alike(source, open_features(self._folder(domain.name)).manifest)
        self.check_features(source.dim)

    def _check_alike(self, source: Manifest, target: Manifest) -> None:
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

    def whole_target(self, domain: Domain) -> FeatureRows:
        return FeatureRows(open_features(self._folder(domain.name)))

    def source(self) -> FeatureRows:
        """Return the features of the source domain."""
        return FeatureRows(open_features(self._folder(self.source_domain)))

    def describe_source(self) -> dict[str, Any]:
        return {"name": self.source_domain, "sha256": content_hash(self._folder(self.source_domain))}

    def describe(self) -> dict[str, Any]:
        # What is on the disk, not what the config names: a run of all targets reuses the cells of one.
        there = [name for name in self.short_names if (self._folder(name) / MANIFEST).is_file()]
        return {"name": "features", "domains": {name: content_hash(self._folder(name)) for name in there}}

    def differs_from_published(self) -> str:
        """Say that the encoder is frozen, and how many samples there are."""
        names = [self.source_domain, *(domain.name for domain in self.domains())]
        folders = [open_features(self._folder(name)) for name in names]
        sizes = ", ".join(f"{each.manifest.domain} {len(each.labels):,}" for each in folders)
        arch = folders[0].manifest.encoder.get("arch", "encoder")
        return f"features of a frozen {arch}, not a network trained end to end; {sizes} samples"

    def _folder(self, domain: str) -> Path:
        return Path(self.cfg.DATA_DIR).resolve() / domain


def _difference(one: Any, other: Any) -> str:
    """Return the first difference between two dicts, lists or values."""
    if isinstance(one, dict):
        key = next(key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key))
        return f"{key}: {one.get(key)!s:.40} and {other.get(key)!s:.40}"
    if isinstance(one, list):
        lacking = sorted(set(one) ^ set(other))
        return f"{lacking[0]!r} is in one of them only" if lacking else "their order"
    return f"{one} and {other}"
