"""The batches of a planned stream, read from its domains as they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, TensorDataset
from yacs.config import CfgNode

from tta_cattan.bench import Domain
from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.data.datasets import labels_of
from tta_cattan.bench.data.stream import Batch, BatchedDataset, Stream, gather
from tta_cattan.bench.data.stream_plan import Segment, StreamPlan, StreamSetting, plan_stream, sequence_of
from tta_cattan.util.files import sha256_text

Opener = Callable[[Domain], Dataset]


@dataclass(frozen=True)
class DomainStream:
    """A planned stream in batches; ``open`` returns the data set of a domain, of which only a few are kept."""

    plan: StreamPlan
    open: Opener
    batch_size: int
    device: torch.device
    workers: int = 0

    def __len__(self) -> int:
        return sum(-(-len(segment) // self.batch_size) for segment in self.plan.segments)

    def batches(self, done: int = 0) -> Iterator[tuple[bool, Batch]]:
        """Yield the batches after the first ``done``, each with a flag that tells whether to reset the method first.

        Note: the indices of a batch are within the samples' own domains.
        """
        held = lru_cache(maxsize=self.plan.at_once)(self.open)
        for segment in self.plan.segments:
            count = -(-len(segment) // self.batch_size)
            if done >= count:
                done -= count
                continue
            indices = torch.from_numpy(segment.index).split(self.batch_size)
            stream = self._stream(segment, held).only(range(done, count))
            for place, batch in enumerate(stream, start=done):
                yield segment.reset and place == 0, Batch(indices[place], batch.inputs, batch.labels)
            done = 0

    def _stream(self, segment: Segment, held: Opener) -> Stream:
        domains = list(dict.fromkeys(self.plan.visits[number] for number in np.unique(segment.visit)))
        if len(domains) == 1:
            dataset, places = held(domains[0]), segment.index
        else:
            sizes = [len(held(domain)) for domain in domains]
            starts = np.cumsum([0, *sizes])
            of_visit = np.array([starts[domains.index(d)] if d in domains else -1 for d in self.plan.visits])
            places = of_visit[segment.visit] + segment.index
            in_batches = isinstance(held(domains[-1]), (TensorDataset, BatchedDataset))
            dataset = Joined(domains, starts, held) if in_batches else ConcatDataset(map(held, domains))
        return Stream(dataset, self.batch_size, None, self.device, self.workers, sequence=tuple(places.tolist()))


class Joined(BatchedDataset):
    """A concatenation of domains, each of which is opened when one of its samples is requested."""

    def __init__(self, domains: list[Domain], starts: np.ndarray, held: Opener) -> None:
        self.domains, self.starts, self.held = domains, torch.from_numpy(starts), held

    def __len__(self) -> int:
        return int(self.starts[-1])

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        owner = torch.searchsorted(self.starts, indices, right=True) - 1
        places, parts = [], []
        for number in owner.unique().tolist():
            mine = (owner == number).nonzero()[:, 0]
            places.append(mine)
            parts.append(gather(self.held(self.domains[number]), indices[mine] - self.starts[number]))
        back = torch.cat(places).argsort()
        return torch.cat([inputs for inputs, _ in parts])[back], torch.cat([labels for _, labels in parts])[back]


def stream_of(cfg: CfgNode, benchmark: Benchmark, seed: int, device: torch.device) -> DomainStream:
    """Return the stream that ``SETTING`` makes of a benchmark's domains."""
    setting = StreamSetting.of(cfg)
    visits = sequence_of(benchmark.domains(), setting)

    def open_domain(domain: Domain) -> Dataset:
        return benchmark.target(domain, seed)

    labels = {domain: np.array(labels_of(open_domain(domain))) for domain in dict.fromkeys(visits)}
    plan = plan_stream(visits, labels, setting, seed)
    return DomainStream(plan, open_domain, cfg.TEST.BATCH_SIZE, device, cfg.TEST.NUM_WORKERS)


def stream_identity(cfg: CfgNode, benchmark: Benchmark) -> str:
    """Return a hash of the identities of a stream's domains and of the clean data; '' if they have none."""
    parts = [(domain, benchmark) for domain in dict.fromkeys(sequence_of(benchmark.domains(), StreamSetting.of(cfg)))]
    if (clean := benchmark.without_shift()) is not None:
        parts.append((clean.domains()[0], clean))
    found = [f"{domain.label}:{identity}" for domain, owner in parts if (identity := owner.identity(domain))]
    return sha256_text(";".join(found))[:12] if found else ""


def check_stream(cfg: CfgNode, benchmark: Benchmark) -> None:
    """Refuse a stream with a missing domain, before any long work starts."""
    every = cfg.clone()
    every.defrost()
    every.CORRUPTION.SEVERITY = sorted({d.severity for d in sequence_of(benchmark.domains(), StreamSetting.of(cfg))})
    type(benchmark)(every).check()
