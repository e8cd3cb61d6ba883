"""``tta-cattan train-source``: train the source model of a benchmark, and fit its subspace."""

from __future__ import annotations

from collections.abc import Sequence

from tta_cattan.cli.arguments import ConfigParser, config_file

_PARSER = ConfigParser(
    "train-source",
    "Train a source model by the recipe in the SOURCE keys and write it with its source subspace to CKPT_DIR, where "
    "every other command finds it. Run it again to resume.",
    config_file("cfgs/officehome/base.yaml"),
    usage="--cfg FILE",
)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, overrides = _PARSER.parse(argv)
    import torch

    from tta_cattan.bench.data import benchmark_of
    from tta_cattan.bench.models.zoo import check_arch
    from tta_cattan.bench.run.log import setup_logging
    from tta_cattan.bench.source.model import train_source, validation_accuracy
    from tta_cattan.bench.source.subspace import auto_path, forward_method, kept_subspace
    from tta_cattan.config import find_config, load_cfg

    setup_logging()
    cfg = load_cfg(find_config(args.cfg), overrides)
    benchmark = benchmark_of(cfg)
    benchmark.check()
    check_arch(cfg.MODEL.ARCH, benchmark.family)
    torch.backends.cudnn.benchmark = cfg.CUDNN.BENCHMARK
    loaded = train_source(cfg, benchmark)
    accuracy = validation_accuracy(loaded.origin)
    held_out = "" if accuracy is None else f", {accuracy:.2%} of the held-out source data right"
    print(f"source model: {loaded.origin} (sha256 {loaded.sha256[:16]}{held_out})")
    subspace = kept_subspace(cfg, loaded, benchmark)
    path = auto_path(cfg, loaded, benchmark)
    kind = "moments" if forward_method(cfg) else "subspace"
    print(f"source {kind}: {path} (of {subspace.count} samples)")
    return 0
