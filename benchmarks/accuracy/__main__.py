"""The tables of docs/study.md: ``python -m benchmarks.accuracy --data DIR [NAME ...]``; runs resume."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy import left_on
from benchmarks.accuracy.figure import draw
from benchmarks.accuracy.grid import grids, run_grid, to_markdown
from benchmarks.accuracy.shifts import make_all
from tta_cattan.bench.run.log import setup_logging
from tta_cattan.util.files import write_text
from tta_cattan.util.memory import keep_freed_memory

LEFT_ON = {"left-on": left_on.table, "left-on-safety": left_on.safety_table}


def main(arguments: Sequence[str]) -> int:
    """Make the tables in order, and print and write each as soon as it is whole."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="tables (default: all)")
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data: cifar10, digits, ...")
    parser.add_argument("--out", type=Path, default=Path("output", "study"), help="where data and results are kept")
    options = parser.parse_args(arguments)
    data, out = options.data.resolve(), options.out.resolve()
    named = {grid.name: grid for grid in grids(data, out)}
    known = [*named, *LEFT_ON]
    if unknown := set(options.names) - set(known):
        parser.error(f"no table is called {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    setup_logging()
    keep_freed_memory()
    names = options.names or known
    make_all(data, out, names)
    for name in names:
        if name in LEFT_ON:
            text = f"### CIFAR-10, ResNet-20, methods left on\n\n{LEFT_ON[name](data, out)}\n"
        else:
            found = run_grid(named[name], out)
            text = f"### {named[name].title}\n\n{to_markdown(found, named[name].columns)}\n"
            draw(found, out, name)
        write_text(out / f"{name}.md", text)
        print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
