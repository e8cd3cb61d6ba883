"""``tta-cattan extract-features``: run a frozen encoder over the domains of a benchmark, once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tta_cattan.cli.arguments import ConfigParser
from tta_cattan.util.errors import UserError, nearest

if TYPE_CHECKING:
    from tta_cattan.bench.data import Benchmark
    from tta_cattan.bench.domain import Domain


def parser() -> ConfigParser:
    """Return the parser of the command's arguments."""
    result = ConfigParser(
        prog="tta-cattan extract-features",
        usage="%(prog)s --cfg FILE --out DIR [options] [KEY VALUE ...]",
        description="Write the features of every domain's images by the encoder MODEL.ARCH (timm/NAME, "
        "torchvision/NAME) to DIR/<domain>/, for CORRUPTION.DATASET features. What is finished is kept: an interrupted "
        "command goes on. Under torchrun the processes share the shards.",
    )
    result.add_argument("--cfg", metavar="FILE", required=True, help="e.g. cfgs/domainnet_features/extract.yaml")
    result.add_argument("--out", metavar="DIR", type=Path, required=True, help="a folder per domain is made in it")
    result.add_argument("--domains", metavar="A,B", help="default: all of the benchmark's")
    result.add_argument(
        "--weights",
        choices=("file", "library", "random"),
        default="file",
        help="of the encoder: MODEL.CKPT_PATH (default), downloaded by its library, or none (to measure speed)",
    )
    result.add_argument(
        "--pool",
        choices=("auto", "token", "head"),
        default="auto",
        help="class token, or what the encoder's classifier would receive (default: the token where it was trained)",
    )
    result.add_argument("--shard-size", metavar="N", type=int, default=4096, help="images per file (4096)")
    result.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, overrides = parser().parse(argv)
    from tta_cattan.bench.data import benchmark_of
    from tta_cattan.bench.models.encoder import load_encoder
    from tta_cattan.bench.run.log import setup_logging
    from tta_cattan.bench.source.distributed import join_workers
    from tta_cattan.bench.source.extract import Cut, extract_domain
    from tta_cattan.config import find_config, load_cfg

    if args.shard_size < 1:
        raise UserError(f"--shard-size {args.shard_size}: give the number of images per file, at least 1")
    # With neither source nor target, the domains of a domain-adaptation benchmark are all that there are.
    cfg = load_cfg(find_config(args.cfg), [*overrides, "DATA.SOURCE", "", "DATA.TARGET", ""])
    benchmark = benchmark_of(cfg)
    if not benchmark.images:
        raise UserError(f"CORRUPTION.DATASET = {benchmark.name!r} has no images to take features of")
    domains = chosen_domains(benchmark, args.domains)
    check_domains(benchmark, domains)
    with join_workers() as workers:
        if workers.leads:
            setup_logging()
        encoder, pool = load_encoder(cfg, args.weights, args.pool)
        cut = Cut(args.shard_size, args.dtype)
        for domain in domains:
            share = extract_domain(cfg, benchmark, domain, encoder, pool, args.out, cut, workers)
            who = "" if workers.count == 1 else f" (process {workers.rank + 1} of {workers.count})"
            speed = f", {share.images / share.seconds:.1f} images/s" if share.images else ""
            print(f"{args.out / domain.label}: {share.made} shards made, {share.kept} were there already{speed}{who}")
    return 0


def check_domains(benchmark: Benchmark, domains: Sequence[Domain]) -> None:
    """Check that the data is there and, of a domain-adaptation benchmark, that the domains have the same classes."""
    from tta_cattan.bench.data.adaptation import DomainBenchmark

    if not isinstance(benchmark, DomainBenchmark):
        benchmark.check()
        return
    for domain in domains:
        pair = benchmark.cfg.clone()
        pair.merge_from_list(["DATA.SOURCE", domains[0].name, "DATA.TARGET", domain.name])
        type(benchmark)(pair).check()


def chosen_domains(benchmark: Benchmark, names: str | None) -> list[Domain]:
    """Return the benchmark's domains, or those among them that are named."""
    every = {domain.label: domain for domain in benchmark.domains()}
    for name in (names or "").split(",") if names is not None else ():
        if name not in every:
            raise UserError(f"--domains has {name!r}.{nearest(name, every)} There are: {', '.join(every)}")
    return [every[name] for name in names.split(",")] if names else list(every.values())
