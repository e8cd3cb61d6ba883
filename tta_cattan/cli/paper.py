"""``tta-cattan paper NAME``: reproduce a table or figure of the paper, beside the published figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tta_cattan.cli.arguments import METHODS, ConfigParser, config_file, method_names, option
from tta_cattan.util.errors import UserError

_PARSER = ConfigParser(
    "paper",
    "Run a table or figure of the paper, beside the published figures; finished results are reused. With --cfg the "
    "study runs on another benchmark.",
    option("name", "a study; see --list", "NAME", nargs="?"),
    option("--list", "list the studies, and exit"),
    config_file("cfgs/mnist_usps/cattan.yaml, whose benchmark replaces the paper's", required=False),
    METHODS,
    option("--sweep", "settings instead of the study's", "KEY=A,B,C"),
    option("--out", "where to write (default: SAVE_DIR/paper)", "DIR", type=Path),
    usage="NAME [--cfg FILE] [OPTIONS]",
)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, overrides = _PARSER.parse(argv)
    from tta_cattan.bench.paper.study import load_study, run_study, study_names
    from tta_cattan.bench.run.log import setup_logging

    if args.list:
        for name in study_names():
            print(f"{name:26} {load_study(name).title}")
        return 0
    if args.name is None:
        raise UserError(f"name a study: {', '.join(study_names())}")
    setup_logging()
    methods = method_names(args.methods, overrides)
    text, files = run_study(load_study(args.name), args.cfg, methods, args.sweep, overrides, args.out)
    print(text)
    print("\nwritten: " + ", ".join(map(str, files)))
    return 0
