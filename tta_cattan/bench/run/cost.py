"""What a cell costs: time and memory."""

from __future__ import annotations

import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

from tta_cattan.util.allocator import give_back_freed_memory

# Metrics that differ from one computation of a cell to the next.
COST_METRICS = ("seconds", "images_per_second", "peak_memory")
_PROC = Path("/proc/self")


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

    def metrics(self, images: int) -> dict[str, float]:
        """Return the seconds, images per second and, where the system tells it, the peak memory in bytes."""
        seconds = time.perf_counter() - self._started
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
