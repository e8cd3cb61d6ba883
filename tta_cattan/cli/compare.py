"""The harness: compare adaptation methods on a benchmark."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tta_cattan.cli.arguments import DRY_RUN, METHODS, ConfigParser, config_file, method_names, option
from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from tta_cattan.bench.run.runner import Launcher

logger = logging.getLogger(__name__)

DEFAULT_CFG = "cfgs/digits_c/cattan.yaml"
_MOST_WORKERS = 8  # for the command without arguments: each worker needs half a gigabyte
# Overrides for that command's short second table.
_STREAM = ["SETTING", "continual", "TEST.PROTOCOL", "online", "SEEDS", "0"]


_PARSER = ConfigParser(
    "compare",
    "Compare test-time adaptation methods. Without arguments: all of ours on the embedded digits, with a report.",
    config_file("cfgs/imagenet_c/cattan.yaml", required=False),
    METHODS,
    option(
        "--sweep",
        "one row per setting of a key, e.g. CATTAN.D=64,256; repeat it for every combination",
        "KEY=A,B,C",
        action="append",
        default=[],
    ),
    option(
        "--host",
        "checkout of mariodoebler/test-time-adaptation, whose methods --methods can name as host:NAME",
        "PATH",
    ),
    option("--launcher", "where the results are computed", choices=("local", "ray"), default="local"),
    option("--address", "a running Ray cluster, or 'auto'; default: start Ray here", "HOST:PORT"),
    option(
        "--workers",
        "results computed at a time, each on one thread (default: one, on all threads; with Ray one per CPU)",
        "N",
        type=int,
    ),
    option("--list", "list methods, datasets and models, and exit"),
    option("--list-layers", "list the layers of the model that CATTAN.LAYER can name, and exit"),
    DRY_RUN,
    usage="[--cfg FILE] [--methods A,B,C] [--sweep KEY=A,B,C] [OPTIONS]",
)


def main(argv: Sequence[str]) -> int:
    """Run the harness."""
    args, overrides = _PARSER.parse(argv)
    if args.list:
        return _list(args.host)
    from tta_cattan.bench.run.dry_run import dry_run
    from tta_cattan.bench.run.log import setup_logging
    from tta_cattan.bench.run.plan import check_read, parse_sweeps, plan_rows
    from tta_cattan.bench.run.runner import run
    from tta_cattan.config import find_config, shared_keys
    from tta_cattan.methods import ADAPTATION_REGISTRY

    methods = method_names(args.methods, overrides)
    embedded = args.cfg is None and not methods and "MODEL.ADAPTATION" not in overrides[::2]
    if embedded:
        methods = ADAPTATION_REGISTRY.registered_names()
    setup_logging()
    methods = _without_faults(args.host, methods, overrides)
    sweeps = parse_sweeps(args.sweep, overrides)
    rows = plan_rows(find_config(args.cfg or DEFAULT_CFG), overrides, methods, sweeps)
    check_read(overrides, rows)
    if args.list_layers:
        return _list_layers(rows[0].cfg)
    plain = embedded and not sweeps and set(overrides[::2]) <= set(shared_keys("place", "presentation"))
    launcher = _launcher(args, small=plain)
    if plain:  # the same figures on any number of cores; the network is too small for more than one
        import torch

        torch.set_num_threads(1)
    if args.dry_run:
        print(dry_run(rows))
        return 0
    outcome = run(rows, launcher)
    print(outcome.summary.to_text())
    print(f"\nresults: {outcome.folders[0]}")
    if plain:
        streams = run(plan_rows(find_config(DEFAULT_CFG), [*overrides, *_STREAM], methods), launcher)
        print("\nThe same corruptions as one stream, online and without reset:\n")
        print(streams.summary.to_text())
        print(f"\nresults: {streams.folders[0]}")
        _report([*outcome.folders, *streams.folders], Path(rows[0].cfg.SAVE_DIR) / "report")
    return 0


def _without_faults(host: str | None, methods: list[str], overrides: Sequence[str]) -> list[str]:
    """Register the host's methods and return ``methods`` without those that cannot be imported, which are logged."""
    asked = methods or dict(zip(overrides[::2], overrides[1::2], strict=False)).get("MODEL.ADAPTATION", "").split()
    names = [name.lower().removeprefix("host:") for name in asked if name.lower().startswith("host:")]
    if not names:
        return methods
    if host is None:
        raise UserError(f"host:{names[0]}: give --host PATH, a checkout of mariodoebler/test-time-adaptation")
    from tta_cattan.bench.run.host_methods import borrow

    left_out = borrow(host, names)
    for name, reason in left_out.items():
        logger.warning("left out: %s: %s", name, reason)
    if len(left_out) == len(asked):
        raise UserError(f"no method could run: {'; '.join(left_out.values())}")
    return [name for name in methods if name.lower() not in left_out]


def _launcher(args: argparse.Namespace, small: bool) -> Launcher:
    """Return the launcher that computes the results; a ``small`` network defaults to one-threaded processes."""
    if args.workers is not None and args.workers < 1:
        raise UserError(f"--workers {args.workers}: at least 1 is needed")
    if args.address is not None and args.launcher != "ray":
        raise UserError(f"--address {args.address}: this is an option of --launcher ray")
    if args.address is not None and args.workers is not None:
        raise UserError(f"--workers {args.workers}: the cluster at {args.address} decides how many there are")
    if args.launcher == "ray":
        from tta_cattan.bench.run.launchers import RayLauncher

        return RayLauncher(args.address, args.workers)
    from tta_cattan.bench.run.cell import one_by_one
    from tta_cattan.bench.run.launchers import ProcessLauncher, usable_cpus

    workers = args.workers if args.workers is not None else min(usable_cpus(), _MOST_WORKERS) if small else None
    return one_by_one if workers is None else ProcessLauncher(workers)


def _report(folders: Sequence[Path], out: Path) -> None:
    """Write the report and print its path, or how to install what it needs."""
    if not all(find_spec(name) for name in ("jinja2", "matplotlib")):
        runs = " ".join(map(str, folders))
        print(f"report: pip install 'tta-cattan[report]', then tta-cattan report {runs} --out {out}")
        return
    from tta_cattan.bench.report.page import write_report

    print(f"report: {write_report(folders, out)}")


def _list_layers(cfg: CfgNode) -> int:
    """Print the layers whose output can be aligned, with their type and the shape of one sample's output."""
    from tta_cattan.bench.data import benchmark_of
    from tta_cattan.bench.models.zoo import load_model, untrained_model
    from tta_cattan.bench.run.setting import first_inputs
    from tta_cattan.network.layers import list_layers

    benchmark = benchmark_of(cfg)
    benchmark.check()
    model = untrained_model(cfg, benchmark.num_classes, benchmark.family)
    if model is None:  # RobustBench builds some with their weights only
        model = load_model(cfg, benchmark.num_classes, benchmark.family).model
    for name, kind, shape in list_layers(model, first_inputs(benchmark)):
        print(f"{name:40} {kind:24} {' x '.join(map(str, shape[1:]))}")
    return 0


def _list(host: str | None) -> int:
    """Print the names that a config may use, and those of a host's methods."""
    from tta_cattan.bench.data import BENCHMARK_REGISTRY
    from tta_cattan.bench.models.robustbench import robustbench_names
    from tta_cattan.bench.models.zoo import ARCHITECTURES
    from tta_cattan.methods import ADAPTATION_REGISTRY

    for title, registry in (
        ("methods (MODEL.ADAPTATION)", ADAPTATION_REGISTRY),
        ("datasets (CORRUPTION.DATASET)", BENCHMARK_REGISTRY),
        ("models (MODEL.ARCH)", ARCHITECTURES),
    ):
        print(f"{title}: {', '.join(registry.registered_names())}")
    if host is not None:
        from tta_cattan.host.checkout import Checkout

        print(f"methods of the host: {', '.join(f'host:{name}' for name in Checkout(host).names())}")
    print("  and torchvision/NAME, timm/NAME for any of their models; shot/NAME: SHOT's network on any of these")
    for family in ("cifar10", "cifar100", "imagenet"):
        try:
            print(f"  and RobustBench's for {family}: {', '.join(robustbench_names(family))}")
        except UserError as error:
            print(f"  and RobustBench's for {family} ({error})")
    return 0
