"""All benchmarks, or those named, one after the other: ``python -m benchmarks.speed [NAME ...] [--keep FILE]``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.speed.results import alone, finished, keep
from benchmarks.speed.timing import HEAD

NAMES = (
    "step",
    "forward",
    "allocator",
    "features_step",
    "subspace_fit",
    "tracker",
    "monitor",
    "evaluation",
    "harness",
    "offline",
    "folded",
    "latency",
    "likelihood_ratio",
    "memory",
    "growth",
    "scale_out",
    "start_up",
)


def main(arguments: Sequence[str]) -> int:
    """Run what is not in the file yet, each in a process of its own, and print one table of everything in it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that it runs")
    parser.add_argument("--keep", type=Path, help="file of the finished ones (output/benchmarks.jsonl)")
    options = parser.parse_args(arguments)
    path = options.keep or Path("output", "benchmarks-tiny.jsonl" if options.tiny else "benchmarks.jsonl")
    names = options.names or NAMES
    if unknown := set(names) - set(NAMES):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    kept, failed = finished(path), 0
    for name in names:
        if name in kept:
            print(f"{name}: is in {path}; remove its line to run it again", file=sys.stderr)
            continue
        print(f"{name}: runs", file=sys.stderr, flush=True)
        started = time.perf_counter()
        try:
            kept[name] = alone(name, options.tiny)
        except RuntimeError as error:  # the others have something to say all the same
            print(f"{name}: failed, {error}", file=sys.stderr, flush=True)
            failed += 1
            continue
        print("\n".join(kept[name]["rows"]), file=sys.stderr)
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        keep(path, name, kept[name])
    print(HEAD)
    for name in (name for name in NAMES if name in kept):
        print("\n".join(kept[name]["rows"]))
    print()
    for name in (name for name in NAMES if name in kept):
        print(f"{name}: {kept[name]['machine']}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
