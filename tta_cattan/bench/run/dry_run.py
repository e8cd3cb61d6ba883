"""A dry run: what a comparison would compute, and how long that takes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from yacs.config import CfgNode

from tta_cattan.alignment import fit_source_moments
from tta_cattan.bench.data import Benchmark, Stream
from tta_cattan.bench.data.benchmark import DomainBenchmark
from tta_cattan.bench.data.domain_stream import stream_of
from tta_cattan.bench.models.zoo import resolve_device, untrained_model
from tta_cattan.bench.results.table import number_range
from tta_cattan.bench.run.plan import Row, is_stream, protocol_name, seeds
from tta_cattan.bench.run.setting import check_files, check_rows, rehearse, rehearse_rows
from tta_cattan.bench.source.subspace import forward_method
from tta_cattan.config.declared import set_value
from tta_cattan.methods import ADAPTATION_REGISTRY

logger = logging.getLogger(__name__)

_DIMENSION = 4
_BATCHES, _SECONDS = 3, 2.0  # batches timed of each kind; fewer once they have taken this many seconds


class Work(NamedTuple):
    """The number of samples behind each result (a domain, or a whole stream), and the inputs of one batch."""

    samples: Sequence[int]
    batch_size: int
    inputs: Tensor


class Timing(NamedTuple):
    """Seconds per batch with and without adaptation (None: unknown), and whether adapting updates parameters."""

    adapting: float | None
    predicting: float
    updates: bool = True


# The work of one row: the number of results, of updates in all of them, and of seconds (NaN: unknown).
Estimate = tuple[int, int, float]


def dry_run(rows: Sequence[Row]) -> str:
    """Check everything in a comparison that the user can get wrong, write nothing, and return what would run."""
    benchmarks = check_rows(rows)
    rehearse_rows(rows, benchmarks)
    check_files(rows, benchmarks)
    return describe({"": (rows, benchmarks)})


def describe(by_source: Mapping[str, tuple[Sequence[Row], Sequence[Benchmark]]]) -> str:
    """Return what the comparisons would do, one per source domain ('' if there is none), as lines of text.

    Note: the methods are timed on the first source's data.
    """
    works: dict[tuple[str, str], Work] = {}  # the rows of a source share it, unless a sweep changes the data
    timings: dict[str, Timing] = {}
    estimates: dict[str, list[Estimate]] = {}
    domains: list[str] = []
    for source, (rows, benchmarks) in by_source.items():
        for row, benchmark in zip(rows, benchmarks, strict=True):
            changes = repr(row.changes)  # values may be lists
            if (source, changes) not in works:
                works[source, changes] = work_of(row.cfg, benchmark)
            work = works[source, changes]
            if row.label not in timings:
                timings[row.label] = timing(row.cfg, benchmark, work.inputs)
            estimates.setdefault(row.label, []).append(estimate(row.cfg, work, timings[row.label]))
        first = benchmarks[0]
        pair = first.pair_label if isinstance(first, DomainBenchmark) and source else None
        domains += [pair(source, domain.name) if pair else domain.label for domain in first.domains()]
    cfg = rows[0].cfg
    shown = domains if len(domains) <= 4 else [*domains[:2], "...", domains[-1]]
    what = "pairs" if any(by_source) else "domains"
    samples = number_range({n for work in works.values() for n in work.samples})
    epochs = f", {cfg.TEST.EPOCHS} {'epoch' if cfg.TEST.EPOCHS == 1 else 'epochs'}" if _offline(cfg) else ""
    name = f"{cfg.CORRUPTION.DATASET}-{cfg.MODEL.ARCH.replace('/', '_')}-<hash of the weights>-{protocol_name(cfg)}"
    every = [one for found in estimates.values() for one in found]
    lines = [
        f"data       {cfg.CORRUPTION.DATASET}: {len(domains)} {what} ({', '.join(shown)})",
        f"protocol   {protocol_name(cfg)}{epochs}, {samples} samples in batches of {work.batch_size}",
        f"model      {cfg.MODEL.ARCH}, on {resolve_device(cfg.DEVICE)}",
        f"seeds      {', '.join(map(str, seeds(cfg)))}",
        f"folder     {Path(cfg.SAVE_DIR) / name}",
        "",
        f"{'method':24}{'results':>9}{'updates':>10}{'time':>12}",
        *(_line(label, found) for label, found in {**estimates, "all": every}.items()),
        "time: from a few timed batches, one process; training or downloading the source model is not in it",
    ]
    logger.info("dry run: nothing was computed or written; the configuration and the data are in order")
    return "\n".join(lines)


def estimate(cfg: CfgNode, work: Work, timed: Timing) -> Estimate:
    """Return the work of a row on one source's targets.

    Note: passes without updates (fitting a subspace, pseudo-labels) are counted as one prediction of all samples.
    """
    runs = len(seeds(cfg))
    batches = runs * sum(-(-n // work.batch_size) for n in work.samples)
    updates = batches * (cfg.TEST.EPOCHS if _offline(cfg) else 1) if timed.updates else 0
    if timed.adapting is None or cfg.TEST.PROTOCOL == "recovery":
        seconds = math.nan
    elif _offline(cfg):
        seconds = updates * timed.adapting + 2 * batches * timed.predicting
    else:
        seconds = batches * timed.adapting
    return len(work.samples) * runs, updates, seconds


def timing(cfg: CfgNode, benchmark: Benchmark, inputs: Tensor) -> Timing:
    """Time a few batches of a method on its untrained network."""
    model = untrained_model(cfg, benchmark.num_classes, benchmark.family)
    if model is None:
        return Timing(None, 0.0)
    device = resolve_device(cfg.DEVICE)
    model, inputs = model.to(device), inputs.to(device)
    method_class = ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION)
    moments = None
    if forward_method(cfg) and method_class.needs_source_subspace(cfg):
        channels, layer = (method_class.value_in(cfg, name) for name in ("channels", "layer"))
        moments = fit_source_moments(model, [inputs], channels, layer=layer)
    method = rehearse(_with_dimension(cfg), model, benchmark, moments)
    method.reset()
    safety = logging.getLogger("tta_cattan.methods.safety")
    before, safety.disabled = safety.disabled, True  # an untrained network collapses, which means nothing
    try:
        adapting = _seconds(lambda: method(inputs))
    finally:
        safety.disabled = before
    return Timing(adapting, _seconds(lambda: method.predict(inputs)), method.optimizer is not None)


def work_of(cfg: CfgNode, benchmark: Benchmark) -> Work:
    """Return the work of one pass over the targets of a comparison."""
    if is_stream(cfg):
        whole = stream_of(cfg, benchmark, seeds(cfg)[0], resolve_device("cpu"))
        return Work([len(whole.plan)], whole.batch_size, next(iter(whole.batches()))[1].inputs)
    domains = benchmark.domains()
    # The domains of a domain-adaptation benchmark differ in size; corruptions share the same images.
    looked_at = domains if isinstance(benchmark, DomainBenchmark) else domains[:1]
    targets = [benchmark.target(domain, seeds(cfg)[0]) for domain in looked_at]
    samples = [len(target) for target in targets] if len(targets) == len(domains) else [len(targets[0])] * len(domains)
    stream = Stream(targets[0], cfg.TEST.BATCH_SIZE, None, resolve_device("cpu"))
    return Work(samples, cfg.TEST.BATCH_SIZE, next(iter(stream.only([0]))).inputs)


def show_time(seconds: float) -> str:
    """Return a time in readable units: ``48 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _offline(cfg: CfgNode) -> bool:
    return cfg.TEST.PROTOCOL != "online" and not is_stream(cfg)


def _line(label: str, found: Sequence[Estimate]) -> str:
    results, updates, seconds = (sum(column) for column in zip(*found, strict=True))
    took = "not known" if math.isnan(seconds) else show_time(seconds)
    return f"{label:24}{results:9,}{updates:10,}{took:>12}"


def _with_dimension(cfg: CfgNode) -> CfgNode:
    """Return ``cfg`` with a fixed d if the method would choose it by a rule, which needs the trained model."""
    method = ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION)
    if "d" not in method.keys or method.value_in(cfg, "d"):
        return cfg
    changed = cfg.clone()
    changed.defrost()
    set_value(changed, method.place_of("d"), _DIMENSION)
    return changed


def _seconds(work: Callable[[], object]) -> float:
    """Return the shortest time of ``work``; the first call, which allocates buffers, counts only if it is slow."""
    found: list[float] = []
    while len(found) <= _BATCHES and sum(found) < _SECONDS:
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)
