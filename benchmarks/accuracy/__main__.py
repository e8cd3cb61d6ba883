"""The accuracy study, or the blocks named: ``python -m benchmarks.accuracy --data DIR [NAME ...]``; runs resume."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy.blocks import BASELINES, Block, blocks
from benchmarks.accuracy.product import draw, main_effects
from benchmarks.accuracy.shifts import make_all
from tta_cattan.bench.results.summary import Summary
from tta_cattan.bench.run.gather import gather
from tta_cattan.bench.run.log import setup_logging
from tta_cattan.bench.run.plan import Sweep, parse_sweeps
from tta_cattan.config import find_config
from tta_cattan.methods import method_title
from tta_cattan.util.files import write_text
from tta_cattan.util.memory import keep_freed_memory

Changes = tuple[tuple[str, Any], ...]  # keys and what they are set to
Table = list[tuple[str, Changes, Summary]]  # method, its setting, the summary that has it alone


def main(arguments: Sequence[str]) -> int:
    """Run the blocks in order and print each table as soon as it is whole."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="blocks (default: all)")
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data: cifar10, digits, ...")
    parser.add_argument("--out", type=Path, default=Path("output", "study"), help="where data and results are kept")
    options = parser.parse_args(arguments)
    all_blocks = {block.name: block for block in blocks(options.data.resolve(), options.out.resolve())}
    if unknown := set(options.names) - set(all_blocks):
        parser.error(f"no block is called {', '.join(sorted(unknown))}; there are {', '.join(all_blocks)}")
    setup_logging()
    keep_freed_memory()
    make_all(options.data, options.out)
    for name in options.names or all_blocks:
        block = all_blocks[name]
        chosen = best_settings(run_block(all_blocks[block.chosen_by], options.out)) if block.chosen_by else {}
        table = run_block(block, options.out, chosen)
        text = f"### {block.title}\n\n{to_markdown(table)}\n"
        if block.draws:
            text += f"\n{main_effects([(changes, _accuracy(summary)) for _, changes, summary in table])}\n"
        write_text(options.out / f"{name}.md", text)
        print(text, flush=True)
    return 0


def run_block(block: Block, out: Path, chosen: Mapping[str, Changes] | None = None) -> Table:
    """Return the rows of a block; cells that are there are not computed again."""
    table: Table = []
    for method in block.methods:
        rates = block.rates if method in BASELINES else ()
        sweeps = parse_sweeps([f"OPTIM.LR={','.join(map(str, rates))}"] if rates else [])
        sweeps += parse_sweeps([block.sweep] if block.sweep else [])
        points = draw(block.grid, block.draws) if block.draws else [(chosen or {}).get(method, ())]
        for point in points:
            table += _run_method(block, method, sweeps, point, out)
    return table


def _run_method(block: Block, method: str, sweeps: Sequence[Sweep], point: Changes, out: Path) -> Table:
    more = [value for change in point for value in change]
    places = ["SAVE_DIR", out / "results" / block.name, "CKPT_DIR", out / "ckpt"]
    overrides = [str(v) if isinstance(v, Path) else v for v in (*block.overrides, *more, *places)]
    gathered = gather(find_config(block.cfg), overrides, [method], sweeps, parse_sweeps(block.vary), block.pairs)
    return [(method, (*row.changes, *point), _only(gathered.summary, row.label)) for row in gathered.rows]


def best_settings(table: Table) -> dict[str, Changes]:
    """Return the setting at which each method has the highest mean accuracy; what has none keeps its preset."""
    best: dict[str, tuple[float, Changes]] = {}
    for method, changes, summary in table:
        if changes and _accuracy(summary) > best.get(method, (-1.0, ()))[0]:
            best[method] = _accuracy(summary), changes
    return {method: changes for method, (_, changes) in best.items()}


def _accuracy(summary: Summary) -> float:
    return summary.averages[summary.methods[0], "accuracy"].mean


def to_markdown(table: Table) -> str:
    """Return the table: a row per method and setting, a column per domain, mean and standard deviation over seeds."""
    heads = ["method", "setting", *table[0][2].domain_heads(), "avg", "ECE"]
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    for method, changes, summary in table:
        name = summary.methods[0]
        cells = [f"{100 * summary.cells[name, domain, 'accuracy'].mean:.1f}" for domain in summary.domains]
        mean, ece = summary.averages[name, "accuracy"], summary.averages[name, "ece"]
        std = "" if mean.std is None else f" ({100 * mean.std:.1f})"
        shown = [
            method_title(method),
            _setting(changes) or "-",
            *cells,
            f"{100 * mean.mean:.1f}{std}",
            f"{ece.mean:.2f}",
        ]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)


def _setting(changes: Changes) -> str:
    return ", ".join(f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in changes)


def _only(summary: Summary, label: str) -> Summary:
    cells = {key: value for key, value in summary.cells.items() if key[0] == label}
    averages = {key: value for key, value in summary.averages.items() if key[0] == label}
    return Summary((label,), summary.domains, summary.metrics, cells, averages, summary.missing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
