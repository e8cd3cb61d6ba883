"""Results of whole benchmarks: each from a process of its own, kept in a file as soon as it is there."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.speed.table import machine_line


def alone(name: str, tiny: bool) -> dict[str, Any]:
    """Run a benchmark in a fresh process: what another one has left in memory would be in its figures."""
    # Not by multiprocessing: its children hand their way of starting processes on to the loaders under test.
    command = [sys.executable, "-m", "benchmarks.speed.results", name, *(["tiny"] if tiny else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` ended with code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def measured(name: str, tiny: bool) -> dict[str, Any]:
    """Run a benchmark here and return its rows, with the machine that they are of."""
    machine = machine_line()  # before: the load is the others', not the benchmark's own
    lines = importlib.import_module(f"benchmarks.speed.{name}").measure(tiny=tiny)
    return {"machine": machine, "rows": [line.row() for line in lines]}


def keep(path: Path, name: str, result: dict[str, Any]) -> None:
    """Append a result to the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"name": name, **result}) + "\n")


def finished(path: Path) -> dict[str, dict[str, Any]]:
    """Return the results in the file by name; of two the later, and a line that was cut off counts for nothing."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            result = json.loads(line)
        except ValueError:
            continue
        found[result.pop("name")] = result
    return found


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], "tiny" in sys.argv[2:])))
