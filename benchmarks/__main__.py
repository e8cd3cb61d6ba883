"""All benchmarks, or those named, one after the other: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import importlib
import sys
import time

from benchmarks.table import machine_line
from benchmarks.timing import HEAD

NAMES = (
    "step",
    "features_step",
    "subspace_fit",
    "tracker",
    "evaluation",
    "harness",
    "offline",
    "folded",
    "likelihood_ratio",
    "memory",
    "growth",
    "scale_out",
    "start_up",
)


def main(names: list[str]) -> None:
    """Print one table of all lines, each script under a fresh note of the machine's load on stderr."""
    print(f"{machine_line()}\n\n{HEAD}", flush=True)
    for name in names or NAMES:
        started = time.perf_counter()
        for line in importlib.import_module(f"benchmarks.{name}").measure():
            print(line.row(), flush=True)
        print(f"{name}: {time.perf_counter() - started:.0f} s; {machine_line()}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
