"""``tta-cattan fit-source``: fit the source subspace of a model, or its moments for CATTAn-F, once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tta_cattan.cli.arguments import ConfigParser, config_file, option

_PARSER = ConfigParser(
    "fit-source",
    "Fit the source subspace of a model to its training images and write it to a file. Run it again to resume. Under "
    "torchrun the processes share the work. With MODEL.ADAPTATION cattan_forward or cattan_plus it writes the source "
    "moments, from up to 4,096 images.",
    config_file("cfgs/imagenet_c/cattan.yaml"),
    option("--out", "where to write it (default: where CATTAN.SOURCE_BASIS auto looks)", "FILE"),
    option("--per-class", "use N images of each class (SOURCE.PER_CLASS)", "N", type=int),
    option("--d", "directions to keep (default: all that the images determine)", "D", type=int),
    option("--half", "store the basis in float16"),
    option("--no-mean", "do not store the mean feature"),
    usage="--cfg FILE [OPTIONS]",
)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, overrides = _PARSER.parse(argv)
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
