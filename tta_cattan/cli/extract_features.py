"""``tta-cattan extract-features``: run a frozen encoder over the domains of a benchmark, once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tta_cattan.cli.arguments import ConfigParser, config_file, option
from tta_cattan.util.errors import UserError, nearest

if TYPE_CHECKING:
    from tta_cattan.bench import Domain
    from tta_cattan.bench.data import Benchmark


_PARSER = ConfigParser(
    "extract-features",
    "Write the features of every domain's images by the encoder MODEL.ARCH (timm/NAME, torchvision/NAME), with the "
    "weights of MODEL.CKPT_PATH or else the library's own, to DIR/<domain>/, for CORRUPTION.DATASET features. Run it "
    "again to resume. Under torchrun the processes share the work.",
    config_file("cfgs/domainnet_features/extract.yaml"),
    option("--out", "where to write, one folder per domain", "DIR", type=Path, required=True),
    option("--domains", "domains to encode (default: all)", "A,B"),
    option("--shard-size", "images per file (4096)", "N", type=int, default=4096),
    usage="--cfg FILE --out DIR [OPTIONS]",
)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, overrides = _PARSER.parse(argv)
    from tta_cattan.bench.data import benchmark_of
    from tta_cattan.bench.run.log import setup_logging
    from tta_cattan.bench.source.distributed import join_workers
    from tta_cattan.bench.source.extract import extract_domain, load_encoder
    from tta_cattan.config import find_config, load_cfg

    if args.shard_size < 1:
        raise UserError(f"--shard-size {args.shard_size}: give the number of images per file, at least 1")
    # Without source and target, a domain-adaptation benchmark has all of its domains.
    cfg = load_cfg(find_config(args.cfg), [*overrides, "DATA.SOURCE", "", "DATA.TARGET", ""])
    benchmark = benchmark_of(cfg)
    if not benchmark.images:
        raise UserError(f"CORRUPTION.DATASET = {benchmark.name!r} has no images to take features of")
    domains = chosen_domains(benchmark, args.domains)
    check_domains(benchmark, domains)
    with join_workers() as workers:
        if workers.leads:
            setup_logging()
        encoder = load_encoder(cfg)
        for domain in domains:
            share = extract_domain(cfg, benchmark, domain, encoder, args.out, args.shard_size, workers)
            who = "" if workers.count == 1 else f" (process {workers.rank + 1} of {workers.count})"
            speed = f", {share.images / share.seconds:.1f} images/s" if share.images else ""
            print(f"{args.out / domain.label}: {share.made} shards made, {share.kept} were there already{speed}{who}")
    return 0


def check_domains(benchmark: Benchmark, domains: Sequence[Domain]) -> None:
    """Check that the data exists and that the domains of a domain-adaptation benchmark have the same classes."""
    from tta_cattan.bench.data.benchmark import DomainBenchmark

    if not isinstance(benchmark, DomainBenchmark):
        benchmark.check()
        return
    for domain in domains:
        pair = benchmark.cfg.clone()
        pair.merge_from_list(["DATA.SOURCE", domains[0].name, "DATA.TARGET", domain.name])
        type(benchmark)(pair).check()


def chosen_domains(benchmark: Benchmark, names: str | None) -> list[Domain]:
    """Return the named domains of a benchmark, or all of them."""
    every = {domain.label: domain for domain in benchmark.domains()}
    chosen = list(every) if names is None else names.split(",")
    for name in chosen:
        if name not in every:
            raise UserError(f"--domains has {name!r}.{nearest(name, every)} There are: {', '.join(every)}")
    return [every[name] for name in chosen]
