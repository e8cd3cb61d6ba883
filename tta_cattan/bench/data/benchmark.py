"""What a benchmark is: target domains by name, and the source data where it has them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.data import Dataset

from tta_cattan.bench.data.augment import random_shift
from tta_cattan.bench.domain import Domain
from tta_cattan.util.errors import UserError, nearest
from tta_cattan.util.registry import Registry

if TYPE_CHECKING:
    from yacs.config import CfgNode


class Benchmark(ABC):
    """A family of target domains that one source model is adapted to."""

    num_classes: int
    family: str | None = None  # the part of RobustBench's zoo that has models for it
    images = True  # whether the inputs are images; features and point clouds are not

    def __init__(self, cfg: CfgNode) -> None:
        self.cfg = cfg

    @property
    def name(self) -> str:
        """The registered name that the config uses."""
        return self.cfg.CORRUPTION.DATASET

    def domains(self) -> list[Domain]:
        """Return the domains that the config asks for, in TENT's order: severity by severity."""
        node = self.cfg.CORRUPTION
        return [Domain(name, severity) for severity in node.SEVERITY for name in node.TYPE]

    def class_names(self) -> list[str]:
        """Return the name of each label; the label itself where the data has no names."""
        return [str(label) for label in range(self.num_classes)]

    @abstractmethod
    def check(self) -> None:
        """Raise UserError where data is missing, before any long work starts."""

    def check_corruptions(self, known: Sequence[str], clean: str | None = None) -> None:
        """Refuse a corruption that is not ``known``, and severity 0 where the clean images are another dataset."""
        node = self.cfg.CORRUPTION
        for name in node.TYPE:
            if name not in known:
                raise UserError(f"CORRUPTION.TYPE has {name!r}.{nearest(name, known)} Known: {', '.join(known)}")
        if clean is not None and 0 in node.SEVERITY:
            raise UserError(f"CORRUPTION.SEVERITY has 0: use CORRUPTION.DATASET {clean} for the clean images")

    def check_features(self, dim: int) -> None:
        """Refuse features of another length than the model is built for."""
        if dim != self.cfg.MODEL.IN_FEATURES:
            raise UserError(
                f"MODEL.IN_FEATURES = {self.cfg.MODEL.IN_FEATURES}, and the features of {self.name} in "
                f"{self.cfg.DATA_DIR} are {dim} long: set MODEL.IN_FEATURES {dim}"
            )

    @abstractmethod
    def target(self, domain: Domain) -> Dataset:
        """Return a domain's (input, label) pairs."""

    def source(self) -> Dataset | None:
        """Return the source training data, or None where the benchmark has none."""
        return None

    def augment(self, inputs: Tensor) -> Tensor:
        """Return a batch of ``training_source()`` changed at random: images shifted, all else as it is.

        Note: by torch's own generator, whose state goes into the notes of a training.
        """
        return random_shift(inputs) if self.images else inputs

    def training_source(self) -> Dataset | None:
        """Return the source data as a network is trained on it: the samples of ``source()``, before ``augment``."""
        return self.source()

    def describe_source(self) -> dict[str, Any]:
        """Return what decides the source data's content."""
        return {}

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what decides the data's content in all domains, for the fingerprint of a result."""

    def identity(self, domain: Domain) -> str:
        """Return what tells a domain's files from others of the same names; '' where ``describe`` says it all."""
        return ""


BENCHMARK_REGISTRY: Registry[type[Benchmark]] = Registry("dataset")


def benchmark_of(cfg: CfgNode) -> Benchmark:
    """Return the benchmark that ``CORRUPTION.DATASET`` names."""
    return BENCHMARK_REGISTRY.get(cfg.CORRUPTION.DATASET)(cfg)
