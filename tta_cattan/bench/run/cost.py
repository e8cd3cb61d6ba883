"""What a cell costs: time, memory, and the bytes that a method keeps."""

from __future__ import annotations

import copy
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tta_cattan.methods import AdaptationMethod, Source, Tent
from tta_cattan.methods.safety import Safety
from tta_cattan.network.normalization import StreamStatistics, affine_parameters
from tta_cattan.network.ownership import copy_for_adaptation
from tta_cattan.util.memory import give_back_freed_memory

# Metrics that differ from one computation of a cell to the next.
COST_METRICS = ("seconds", "images_per_second", "peak_memory")
_PROC = Path("/proc/self")
# What every method has, TENT too, and what is no part of the state that it adapts.
_COMMON = (torch.optim.Optimizer, Safety, type)


class Meter:
    """A stopwatch with an eye on memory, running from its creation on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._started = time.perf_counter()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            give_back_freed_memory()
            with suppress(OSError):  # Linux forgets the highest mark when asked to; elsewhere it is the process's
                (_PROC / "clear_refs").write_text("5")

    def metrics(self, images: int, earlier: float = 0.0) -> dict[str, float]:
        """Return the seconds, images per second and, where the system tells it, the peak memory in bytes.

        ``earlier`` is the time that was spent before an interruption.
        """
        seconds = earlier + time.perf_counter() - self._started
        cost = {"seconds": seconds, "images_per_second": images / seconds}
        peak = self._peak_memory()
        return cost if peak is None else {**cost, "peak_memory": peak}

    def _peak_memory(self) -> int | None:
        """Return the most bytes in use: those that torch gave out on a GPU, the process's resident set elsewhere."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        with suppress(OSError):
            found = re.search(r"VmHWM:\s*(\d+) kB", (_PROC / "status").read_text(encoding="ascii"))
            if found:
                return int(found[1]) * 1024
        try:
            import resource
        except ImportError:  # Windows
            return None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def stored_bytes(method: AdaptationMethod) -> int:
    """Return the bytes of all tensors that a method holds, its model's included, its optimiser's and gradients' not.

    Note: what two attributes share counts once, and what only ``fold`` reads, alike in all methods, not at all.
    """
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(method, set())}
    return sum(storages.values())


def tent_bytes(model: nn.Module) -> int:
    """Return what TENT would keep for ``model``; of a model without normalisation layers it is the model alone."""
    kept = copy_for_adaptation(model)
    return stored_bytes(Tent(kept) if affine_parameters(kept)[0] else Source(kept))


def relative_cost(method: AdaptationMethod, source: nn.Module, x: Tensor) -> int:
    """Return how many predictions of the source model one adapting forward costs, rounded up, in operations.

    Note: operations, not seconds, so that the same config gives the same result on every machine. Nothing is changed.
    """
    from torch.utils.flop_counter import FlopCounterMode

    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        with FlopCounterMode(display=False) as adapting:
            copy.deepcopy(method)(x)
        with FlopCounterMode(display=False) as predicting, torch.no_grad():
            copy_for_adaptation(source).eval()(x)
    return max(1, -(-adapting.get_total_flops() // max(1, predicting.get_total_flops())))


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Yield every tensor that can be reached from ``value`` through modules, containers and objects of this package."""
    if isinstance(value, Tensor):
        yield value
        return
    if id(value) in seen or isinstance(value, (*_COMMON, StreamStatistics)):
        return
    seen.add(id(value))
    inside: Any = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, (list, tuple, set)):
        inside = value
    elif isinstance(value, nn.Module) or type(value).__module__.startswith("tta_cattan."):
        inside = getattr(value, "__dict__", {}).values()
    for part in inside:
        yield from _tensors(part, seen)
