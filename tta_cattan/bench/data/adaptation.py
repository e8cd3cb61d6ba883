"""What a domain-adaptation benchmark is: named domains, each of which can be the source or the target."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping

from torch.utils.data import Dataset

from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.data.sampling import balanced
from tta_cattan.bench.domain import Domain
from tta_cattan.util.errors import UserError, nearest


class DomainBenchmark(Benchmark):
    """From ``DATA.SOURCE`` to ``DATA.TARGET``, or to every other domain where that is empty."""

    short_names: Mapping[str, str]  # domain -> its letter in the paper's tables, in their order

    @property
    def source_domain(self) -> str:
        """The source domain by its proper name."""
        return self.named("SOURCE")

    def domains(self) -> list[Domain]:
        """Return the target domains."""
        if self.cfg.DATA.TARGET:
            return [Domain(self.named("TARGET"))]
        source = self.source_domain if self.cfg.DATA.SOURCE else ""
        return [Domain(name) for name in self.short_names if name != source]

    def sources(self) -> list[str]:
        """Return the source domain, or every domain but the target where no source is named."""
        if self.cfg.DATA.SOURCE:
            return [self.source_domain]
        target = self.named("TARGET") if self.cfg.DATA.TARGET else ""
        return [name for name in self.short_names if name != target]

    def pair_label(self, source: str, target: str) -> str:
        """Return the head of a pair's column in the paper's tables, "A>C"."""
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
        """Return how this data differs from that of the published figures; '' where it does not."""
        n = self.cfg.CORRUPTION.NUM_EX
        return f"CORRUPTION.NUM_EX {n}: at most {n} samples per target" if n >= 0 else ""


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()
