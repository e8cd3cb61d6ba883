"""Share work among the processes of ``torchrun``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Workers:
    """The rank of this process among those that share the work."""

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0


ALONE = Workers()


@contextmanager
def join_workers() -> Iterator[Workers]:
    """Join the process group that ``torchrun`` set up, or work alone."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield ALONE
        return
    # gloo works without GPUs, and only two small sums are exchanged.
    dist.init_process_group("gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        yield Workers(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
