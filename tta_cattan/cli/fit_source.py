"""``tta-cattan fit-source``: fit the source subspace of a model, or take its moments for CATTAn-F, once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tta_cattan.cli.arguments import ConfigParser


def parser() -> ConfigParser:
    """Return the parser of the command's arguments."""
    result = ConfigParser(
        prog="tta-cattan fit-source",
        usage="%(prog)s --cfg FILE [options] [KEY VALUE ...]",
        description="Fit the source subspace of a model to its training images and write it to a file. "
        "Run it again to resume. Under torchrun the processes share the work. With MODEL.ADAPTATION cattan_forward it "
        "writes the source's moments, from 4,096 images.",
    )
    result.add_argument("--cfg", metavar="FILE", required=True, help="config file, e.g. cfgs/imagenet_c/cattan.yaml")
    result.add_argument(
        "--out", metavar="FILE", help="where to write it (default: where CATTAN.SOURCE_BASIS auto looks)"
    )
    result.add_argument("--per-class", metavar="N", type=int, help="use N images of each class (SOURCE.PER_CLASS)")
    result.add_argument(
        "--d", metavar="D", type=int, help="directions to keep (default: all that the images determine)"
    )
    result.add_argument("--half", action="store_true", help="store the basis in float16")
    result.add_argument("--no-mean", action="store_true", help="do not store the mean feature")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, overrides = parser().parse(argv)
    import torch

    from tta_cattan.bench.data import benchmark_of
    from tta_cattan.bench.run.log import setup_logging
    from tta_cattan.bench.source.distributed import join_workers
    from tta_cattan.bench.source.model import source_model
    from tta_cattan.bench.source.subspace import (
        default_path,
        fit_moments,
        fit_source_subspace,
        forward_method,
        remove_checkpoint,
        require_source_data,
    )
    from tta_cattan.config import find_config, load_cfg

    if args.per_class is not None:
        overrides += ["SOURCE.PER_CLASS", args.per_class]
    cfg = load_cfg(find_config(args.cfg), overrides)
    benchmark = benchmark_of(cfg)
    with join_workers() as workers:
        if workers.leads:
            setup_logging()
        loaded = source_model(cfg, benchmark)
        path = Path(args.out) if args.out else default_path(cfg, loaded)
        require_source_data(cfg, benchmark, path)
        if forward_method(cfg):
            if workers.leads:
                moments = fit_moments(cfg, loaded, benchmark)
                moments.save(path)
                print(f"wrote {path}: moments of {len(moments.cov)} layers, from {moments.count} images")
            return 0
        subspace = fit_source_subspace(cfg, loaded, benchmark, path, workers, args.d)
        if workers.leads:
            subspace = subspace.without_mean() if args.no_mean else subspace
            subspace.save(path, torch.float16 if args.half else torch.float32)
            print(f"wrote {path}: {subspace.d} directions of {subspace.dim}, from {subspace.count} images")
        remove_checkpoint(path, workers)
    return 0
