"""``tta-cattan report RUN ... --out DIR``: write a page about finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tta_cattan.cli.arguments import CommandParser, option

_PARSER = CommandParser(
    "report",
    "Write one self-contained HTML page about finished runs, with its tables as Markdown, CSV, LaTeX and its figures "
    "as SVG and PNG. Runs on the same data, source model and protocol are compared.",
    option("runs", "folder of a run, or a folder of such folders", "RUN", nargs="+", type=Path),
    option("--out", "where to write (default: report)", "DIR", type=Path, default=Path("report")),
)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = _PARSER.parse_args(argv)
    from tta_cattan.bench.report.page import write_report
    from tta_cattan.bench.run.log import setup_logging

    setup_logging()
    print(write_report(args.runs, args.out))
    return 0
