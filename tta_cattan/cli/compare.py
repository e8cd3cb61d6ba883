"""The harness: compare adaptation methods on a benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tta_cattan.cli.arguments import CommandParser, method_names, parse_with_overrides
from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from tta_cattan.bench.run.runner import Launcher

DEFAULT_CFG = "cfgs/digits_c/cattan.yaml"
LAUNCHERS = ("local", "ray")
ALL_METHODS = ("source", "norm", "tent", "tent_plus", "shot", "ip", "cattan", "cattan_plus")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the harness's arguments."""
    result = CommandParser(
        prog="tta-cattan",
        usage="%(prog)s [--cfg FILE] [--methods A,B,C] [--sweep KEY=A,B,C] [OPTIONS] [KEY VALUE ...]",
        description="Compare test-time adaptation methods. Without arguments: all of ours on the embedded digits.",
        epilog="Other commands: tta-cattan COMMAND --help",
    )
    result.add_argument("--cfg", metavar="FILE", help="config file, e.g. cfgs/imagenet_c/cattan.yaml")
    result.add_argument(
        "--methods", metavar="A,B,C", help="compare several methods; each uses its own file beside FILE"
    )
    result.add_argument(
        "--sweep",
        metavar="KEY=A,B,C",
        action="append",
        default=[],
        help="a row per setting of a key, e.g. CATTAN.D=64,256; given again: every combination",
    )
    result.add_argument("--launcher", choices=LAUNCHERS, default="local", help="where the cells are computed")
    result.add_argument("--address", metavar="HOST:PORT", help="the Ray cluster (or 'auto'); without it Ray runs here")
    result.add_argument("--workers", metavar="N", type=int, help="processes of the Ray that runs here; one per CPU")
    result.add_argument("--list", action="store_true", help="list methods, datasets and models, and stop")
    result.add_argument("--dry-run", action="store_true", help="check everything, compute nothing")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the harness."""
    args, overrides = parse_with_overrides(parser(), argv)
    if args.list:
        return _list()
    from tta_cattan.bench.results.tables import to_text
    from tta_cattan.bench.run.log import setup_logging
    from tta_cattan.bench.run.plan import plan_rows
    from tta_cattan.bench.run.runner import dry_run, run
    from tta_cattan.bench.run.sweep import parse_sweeps
    from tta_cattan.config import find_config

    methods = method_names(args.methods)
    if args.cfg is None and not args.methods:
        methods = list(ALL_METHODS)
    setup_logging()
    sweeps = parse_sweeps(args.sweep, overrides)
    rows = plan_rows(find_config(args.cfg or DEFAULT_CFG), overrides, methods, sweeps)
    launcher = _launcher(args)
    if args.dry_run:
        dry_run(rows)
        return 0
    outcome = run(rows, launcher)
    print(to_text(outcome.summary))
    print(f"\nresults: {outcome.folder}")
    return 0


def _launcher(args: argparse.Namespace) -> Launcher:
    """Return what computes the cells."""
    if args.launcher == "ray":
        from tta_cattan.bench.run.ray_launcher import RayLauncher

        return RayLauncher(args.address, args.workers)
    for option in ("address", "workers"):
        if getattr(args, option) is not None:
            raise UserError(f"--{option} {getattr(args, option)}: this is an option of --launcher ray")
    from tta_cattan.bench.run.cell import one_by_one

    return one_by_one


def _list() -> int:
    """Print what can be named in a config."""
    from tta_cattan.bench.data import BENCHMARK_REGISTRY
    from tta_cattan.bench.models.robustbench_zoo import robustbench_names
    from tta_cattan.bench.models.zoo import ARCHITECTURES
    from tta_cattan.methods import ADAPTATION_REGISTRY

    for title, registry in (
        ("methods (MODEL.ADAPTATION)", ADAPTATION_REGISTRY),
        ("datasets (CORRUPTION.DATASET)", BENCHMARK_REGISTRY),
        ("models (MODEL.ARCH)", ARCHITECTURES),
    ):
        print(f"{title}: {', '.join(registry.registered_names())}")
    print(
        "  and torchvision/NAME and timm/NAME, for any name that they have; shot/NAME: SHOT's network on any of these"
    )
    for family in ("cifar10", "cifar100", "imagenet"):
        try:
            print(f"  and RobustBench's for {family}: {', '.join(robustbench_names(family))}")
        except UserError as error:
            print(f"  and RobustBench's for {family} ({error})")
    return 0
