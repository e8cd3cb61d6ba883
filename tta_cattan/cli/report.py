"""``tta-cattan report RUN ... --out DIR``: a page about finished runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tta_cattan.cli.arguments import CommandParser


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    result = CommandParser(
        prog="tta-cattan report",
        description="Write one self-contained HTML page about finished runs, with its tables as Markdown, CSV, LaTeX "
        "and its figures as SVG and PNG. Runs on the same data, source model and protocol are compared.",
    )
    result.add_argument(
        "runs", metavar="RUN", nargs="+", type=Path, help="folder of a run, or a folder of such folders"
    )
    result.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("report"), help="where to write (default: report)"
    )
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parser().parse_args(argv)
    from tta_cattan.bench.report.page import write_report
    from tta_cattan.bench.run.log import setup_logging

    setup_logging()
    print(write_report(args.runs, args.out))
    return 0
