"""``tta-cattan pairs``: all source>target pairs of a benchmark, the published figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from tta_cattan.cli.arguments import ConfigParser, method_names


def parser() -> ConfigParser:
    """Return the parser of the command's arguments."""
    result = ConfigParser(
        prog="tta-cattan pairs",
        usage="%(prog)s --cfg FILE [--methods A,B,C] [--dry-run] [KEY VALUE ...]",
        description="Train the source model of every domain (or use the finished one), adapt it to every other domain, "
        "and print the paper's table. DATA.SOURCE and DATA.TARGET restrict the pairs. Run it again to resume.",
    )
    result.add_argument("--cfg", metavar="FILE", required=True, help="config file, e.g. cfgs/officehome/cattan.yaml")
    result.add_argument(
        "--methods", metavar="A,B,C", help="compare several methods, each with its own file beside FILE"
    )
    result.add_argument("--dry-run", action="store_true", help="check everything, say what would run and for how long")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, overrides = parser().parse(argv)
    from tta_cattan.bench.run.gather import beside_published, run_pairs
    from tta_cattan.bench.run.log import setup_logging
    from tta_cattan.config import find_config

    setup_logging()
    pairs = run_pairs(find_config(args.cfg), overrides, method_names(args.methods, overrides), args.dry_run)
    if isinstance(pairs, str):
        print(pairs)
    else:
        print(beside_published(pairs.summary, pairs.table).to_text())
        for line in pairs.remarks():
            print(line)
        print(f"\nresults: {pairs.folder}")
    return 0
