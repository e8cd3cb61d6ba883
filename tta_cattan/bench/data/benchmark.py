"""What a benchmark is: target domains by name, source data if there is any, and pairs of named domains."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset
from yacs.config import CfgNode

from tta_cattan.bench import Domain
from tta_cattan.bench.data.datasets import balanced, count_per_class
from tta_cattan.util.errors import UserError, nearest
from tta_cattan.util.registry import Registry


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
        """Return the name of each label; the label itself if the data has no names."""
        return [str(label) for label in range(self.num_classes)]

    @abstractmethod
    def check(self) -> None:
        """Raise a UserError if data is missing, before any long work starts."""

    def check_corruptions(self, known: Sequence[str], clean: str | None = None) -> None:
        """Refuse unknown corruptions, and severity 0 if the clean images are another data set."""
        node = self.cfg.CORRUPTION
        for name in node.TYPE:
            if name not in known:
                raise UserError(f"CORRUPTION.TYPE has {name!r}.{nearest(name, known)} Known: {', '.join(known)}")
        if clean is not None and 0 in node.SEVERITY:
            raise UserError(f"CORRUPTION.SEVERITY has 0: use CORRUPTION.DATASET {clean} for the clean images")

    @abstractmethod
    def target(self, domain: Domain, seed: int = 0) -> Dataset:
        """Return ``CORRUPTION.NUM_EX`` (input, label) pairs of a domain (-1: all).

        They are the first ones if the data has an order of its own; otherwise ``seed`` draws equally many per class.
        """

    def without_shift(self) -> Benchmark | None:
        """Return the benchmark of the same data without any shift, '<family>_clean', or None if files are missing."""
        name = f"{self.family}_clean"
        if name not in BENCHMARK_REGISTRY:
            return None
        cfg = self.cfg.clone()
        cfg.defrost()
        cfg.CORRUPTION.DATASET = name
        other = BENCHMARK_REGISTRY.get(name)(cfg)
        try:
            other.check()
        except UserError:  # the files are not there
            return None
        return other

    def clean(self, seed: int = 0) -> Dataset | None:
        """Return the target data without any shift, or None if there is none."""
        other = self.without_shift()
        return None if other is None else other.target(other.domains()[0], seed)

    def has_source(self) -> bool:
        """Return whether there is source data, without reading it."""
        return False

    def source(self) -> Dataset:
        raise UserError(f"{self.name} has no source data: set DATA.SOURCE_DIR to the source images")

    def source_count(self, per_class: int = 0) -> int:
        """Return the number of source samples, at most ``per_class`` of each class (0: all); no image is decoded."""
        return count_per_class(self.source(), per_class)

    def training_source(self) -> Dataset:
        """Return the samples of ``source()`` in the form used for training, before ``augment``."""
        return self.source()

    def augment(self, inputs: Tensor) -> Tensor:
        """Return a randomly augmented batch of ``training_source()``: images shifted, anything else unchanged.

        Note: uses torch's global generator, whose state is part of a training checkpoint.
        """
        return random_shift(inputs) if self.images else inputs

    def describe_source(self) -> dict[str, Any]:
        """Return what determines the source data's content."""
        return {}

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what determines the data's content in all domains, for the fingerprint of a result."""

    def identity(self, domain: Domain) -> str:
        """Return what distinguishes a domain's files from others of the same names; '' if ``describe`` suffices."""
        return ""


BENCHMARK_REGISTRY: Registry[type[Benchmark]] = Registry("dataset")


def benchmark_of(cfg: CfgNode) -> Benchmark:
    """Return the benchmark that ``CORRUPTION.DATASET`` names."""
    return BENCHMARK_REGISTRY.get(cfg.CORRUPTION.DATASET)(cfg)


def random_shift(images: Tensor, most: int = 2) -> Tensor:
    """Shift a batch of images by the same random number of pixels, at most ``most`` either way, edges repeated."""
    dy, dx = torch.randint(0, 2 * most + 1, (2,)).tolist()
    height, width = images.shape[-2:]
    padded = F.pad(images, [most] * 4, mode="replicate")
    return padded[..., dy : dy + height, dx : dx + width]


class DomainBenchmark(Benchmark):
    """From ``DATA.SOURCE`` to ``DATA.TARGET``, or to every other domain if that is empty."""

    short_names: Mapping[str, str]  # domain -> its letter in the paper's tables, in their order

    @property
    def source_domain(self) -> str:
        return self.named("SOURCE")

    def domains(self) -> list[Domain]:
        if self.cfg.DATA.TARGET:
            return [Domain(self.named("TARGET"))]
        source = self.source_domain if self.cfg.DATA.SOURCE else ""
        return [Domain(name) for name in self.short_names if name != source]

    def used_domains(self) -> list[str]:
        """Return the source domain, then the targets."""
        return [self.source_domain, *(domain.name for domain in self.domains())]

    def sources(self) -> list[str]:
        """Return the source domain, or every domain but the target if no source is named."""
        if self.cfg.DATA.SOURCE:
            return [self.source_domain]
        target = self.named("TARGET") if self.cfg.DATA.TARGET else ""
        return [name for name in self.short_names if name != target]

    def pair_label(self, source: str, target: str) -> str:
        """Return the column head of a pair in the paper's tables, "A>C"."""
        return f"{self.short_names[source]}>{self.short_names[target]}"

    def named(self, key: str) -> str:
        """Return the domain that ``DATA.SOURCE`` or ``DATA.TARGET`` names; case, spaces and hyphens do not matter."""
        given = self.cfg.DATA[key]
        if not given and key == "SOURCE":
            raise UserError(
                f"DATA.SOURCE is empty: name the source domain ({', '.join(self.short_names)}), or run all pairs with "
                "`tta-cattan pairs`"
            )
        known = {_plain(name): name for name in self.short_names}
        if _plain(given) not in known:
            raise UserError(
                f"DATA.{key} = {given!r} is not a domain of {self.name}.{nearest(given, self.short_names)} "
                f"Domains: {', '.join(self.short_names)}"
            )
        return known[_plain(given)]

    def target(self, domain: Domain, seed: int = 0) -> Dataset:
        """Return ``CORRUPTION.NUM_EX`` samples of a domain (-1: all), equally many per class, drawn by ``seed``."""
        return balanced(self.whole_target(domain), self.cfg.CORRUPTION.NUM_EX, seed)

    @abstractmethod
    def whole_target(self, domain: Domain) -> Dataset:
        """Return all samples of a target domain."""

    def has_source(self) -> bool:
        return True

    def differs_from_published(self) -> str:
        """Return how this data differs from that of the published figures; '' if it does not."""
        n = self.cfg.CORRUPTION.NUM_EX
        return f"CORRUPTION.NUM_EX {n}: at most {n} samples per target" if n >= 0 else ""


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()
