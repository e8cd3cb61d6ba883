"""``tta-cattan paper NAME``: a table or figure of the paper, beside the published figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tta_cattan.cli.arguments import ConfigParser, method_names
from tta_cattan.util.errors import UserError


def parser() -> ConfigParser:
    """Return the parser of the command's arguments."""
    result = ConfigParser(
        prog="tta-cattan paper",
        usage="%(prog)s NAME [--cfg FILE] [options] [KEY VALUE ...], or %(prog)s --list",
        description="Run a table or figure of the paper, beside the published figures; finished results are reused. "
        "With --cfg the study runs on another benchmark.",
    )
    result.add_argument("name", nargs="?", metavar="NAME", help="a study; see --list")
    result.add_argument("--list", action="store_true", help="list the studies, and exit")
    result.add_argument("--cfg", metavar="FILE", help="a config whose benchmark replaces the paper's")
    result.add_argument("--methods", metavar="A,B,C", help="methods instead of the study's")
    result.add_argument("--sweep", metavar="KEY=A,B,C", help="settings instead of the study's")
    result.add_argument("--out", metavar="DIR", type=Path, help="where to write (default: SAVE_DIR/paper)")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, overrides = parser().parse(argv)
    from tta_cattan.bench.paper.study import load_study, study_names

    if args.list:
        for name in study_names():
            print(f"{name:26} {load_study(name).title}")
        return 0
    if args.name is None:
        raise UserError(f"name a study: {', '.join(study_names())}")
    study = load_study(args.name)
    from tta_cattan.bench.paper.run import Request, run_study
    from tta_cattan.bench.run.log import setup_logging

    setup_logging()
    request = Request(
        cfg=args.cfg,
        methods=tuple(method_names(args.methods, overrides)),
        sweep=args.sweep or "",
        overrides=tuple(overrides),
        out=args.out,
    )
    text, files = run_study(study, request)
    print(text)
    print("\nwritten: " + ", ".join(map(str, files)))
    return 0
