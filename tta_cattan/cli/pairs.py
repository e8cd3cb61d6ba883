"""``tta-cattan pairs``: run all source>target pairs of a benchmark, with the published figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from tta_cattan.cli.arguments import DRY_RUN, METHODS, ConfigParser, config_file, method_names

_PARSER = ConfigParser(
    "pairs",
    "Train the source model of every domain (or use the finished one), adapt it to every other domain, and print the "
    "paper's table. DATA.SOURCE and DATA.TARGET restrict the pairs. Run it again to resume.",
    config_file("cfgs/officehome/cattan.yaml"),
    METHODS,
    DRY_RUN,
    usage="--cfg FILE [--methods A,B,C] [--dry-run]",
)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, overrides = _PARSER.parse(argv)
    from tta_cattan.bench.run.gather import run_pairs
    from tta_cattan.bench.run.log import setup_logging
    from tta_cattan.config import find_config

    setup_logging()
    print(run_pairs(find_config(args.cfg), overrides, method_names(args.methods, overrides), args.dry_run))
    return 0
