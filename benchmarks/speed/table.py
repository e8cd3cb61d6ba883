"""Printing the table, with the machine that it was made on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from benchmarks.speed.timing import CPU_CLOCK, HEAD, Line
from tta_cattan.bench.results.identity import git_revision, machine, versions


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines as a Markdown table under the machine that made them."""
    print(f"{machine_line()}\n\n{HEAD}")
    for line in lines:
        print(line.row(), flush=True)


def _ray() -> dict[str, str]:
    with suppress(PackageNotFoundError):
        return {"ray": version("ray")}
    return {}


def machine_line() -> str:
    """Return when, on what and with what the figures were made, the load of the last minute included."""
    here, names = machine(), ("python", "torch", "torchvision", "numpy", "scikit-learn", "robustbench", "ray")
    found = {**versions(), **_ray()}
    with_versions = ", ".join(f"{name} {found[name]}" for name in names if name in found)
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load unknown"
    clock = "CPU time" if CPU_CLOCK else "wall time"
    return (
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, {here['processor']}, {here['cpus']} CPUs, "
        f"{here['torch_threads']} threads, {load}, {clock}; {with_versions}; "
        f"commit {git_revision(os.path.dirname(__file__))}"
    )
