"""What is said of a run: beforehand what it would compute and how long that takes; beside its results what it was."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tta_cattan.alignment import fit_source_moments
from tta_cattan.bench.data import Benchmark, Stream
from tta_cattan.bench.data.benchmark import DomainBenchmark
from tta_cattan.bench.data.domain_stream import stream_of
from tta_cattan.bench.models.zoo import resolve_device, untrained_model
from tta_cattan.bench.results.identity import config_path, describe_run, write_run_file
from tta_cattan.bench.results.store import Record
from tta_cattan.bench.results.summary import sample_range
from tta_cattan.bench.results.table import number_range
from tta_cattan.bench.run.plan import Row, is_stream, protocol_name, seeds
from tta_cattan.bench.run.setting import Setting, rehearse, subspace_hash
from tta_cattan.bench.source.subspace import forward_method
from tta_cattan.config import dump_yaml, method_keys, to_dict
from tta_cattan.config.declared import set_value
from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.util.files import sha256_text, write_text

if TYPE_CHECKING:
    from yacs.config import CfgNode


_LONGEST_SWEEP = 120  # characters; file systems allow 255 for the whole name


def run_folder(rows: Sequence[Row], settings: Mapping[str, Setting]) -> Path:
    """Return the folder of a run: one per data set, source model and protocol, and one per set of swept keys.

    Note: a sweep's folder is named after the swept keys, or after their number and hash if they are too long; what the
    sweep changes is left out of the rest of the name.
    """
    names = {
        (row.cfg.CORRUPTION.DATASET, row.cfg.MODEL.ARCH, settings[row.label].loaded.sha256[:8], protocol_name(row.cfg))
        for row in rows
    }
    parts = [values[0] for values in map(list, map(dict.fromkeys, zip(*names, strict=True))) if len(values) == 1]
    swept = sorted({key for row in rows for key, _ in row.changes})
    if len("-".join(swept)) > _LONGEST_SWEEP:
        swept = [f"{len(swept)}-keys", sha256_text(" ".join(swept))[:8]]
    name = "-".join([*parts, *(["by", *swept] if swept else [])])
    return Path(rows[0].cfg.SAVE_DIR) / name.replace("/", "_")


def write_description(
    folder: Path, rows: Sequence[Row], settings: Mapping[str, Setting], fingerprints: Mapping[str, str]
) -> None:
    """Write the resolved configs and ``run.json``: versions, machine, hashes."""
    for row in rows:
        write_text(config_path(folder, row.method, fingerprints[row.label]), dump_yaml(row.cfg))
    first, setting = rows[0].cfg, settings[rows[0].label]
    subspaces = {label: one.subspace for label, one in settings.items() if one.subspace is not None}
    write_run_file(
        folder,
        describe_run(
            config=to_dict(first),
            dataset=setting.benchmark.describe(),
            model_hash=setting.loaded.sha256,
            subspace_hash=subspace_hash(next(iter(subspaces.values()), None)),
            device=str(setting.device),
            source_folder=Path(__file__).parent,
            extra={
                "protocol": protocol_name(first),
                "seeds": seeds(first),
                "model_origin": setting.loaded.origin,
                "rows": [row.label for row in rows],  # in their order; the keys of a mapping are sorted
                "fingerprints": dict(fingerprints),
                "models": {label: one.loaded.sha256 for label, one in settings.items()},
                "sweep": {row.label: dict(row.changes) for row in rows if row.changes},
                "subspaces": {
                    label: {"sha256": subspace_hash(subspace), **subspace.provenance}
                    for label, subspace in subspaces.items()
                },
            },
        ),
    )


def header_lines(rows: Sequence[Row], settings: Mapping[str, Setting], records: Sequence[Record]) -> list[str]:
    """Return the lines above the table: data, model, protocol and seeds, one line per combination, and optimisers."""
    lines = []
    for row in rows:
        cfg = row.cfg
        samples = sample_range(record for record in records if record.cell.label == row.label)
        unit, how = ("stream", "stream") if is_stream(cfg) else ("domain", "protocol")
        epochs = f", {cfg.TEST.EPOCHS} epochs" if cfg.TEST.PROTOCOL == "offline" else ""
        model = f"{cfg.MODEL.ARCH} (sha256 {settings[row.label].loaded.sha256[:16]})"
        lines.append(
            f"{cfg.CORRUPTION.DATASET}, {samples} samples per {unit}; {model}; {protocol_name(cfg)} {how}{epochs}, "
            f"batch {cfg.TEST.BATCH_SIZE}; seeds {', '.join(map(str, seeds(cfg)))}"
        )
    own = [row for row in rows if "OPTIM.LR" in method_keys(row.method)]
    optimisers = [f"{row.label} {row.cfg.OPTIM.METHOD} {row.cfg.OPTIM.LR:g}" for row in own]
    return [*dict.fromkeys(lines), *(["optimiser: " + ", ".join(optimisers)] if own else [])]


_DIMENSION = 4
_BATCHES, _SECONDS = 3, 2.0  # timed of each kind: so many, or fewer where they take longer than this


@dataclass(frozen=True)
class Work:
    """The samples of each domain that is a result of its own (a stream is one), and one batch of them."""

    samples: Sequence[int]
    batch_size: int
    inputs: Tensor

    @property
    def batches(self) -> int:
        """The batches of one pass over all of them."""
        return sum(-(-n // self.batch_size) for n in self.samples)


@dataclass(frozen=True)
class Timing:
    """Seconds of a batch with and without adaptation (None: not known), and whether adapting is updating."""

    adapting: float | None
    predicting: float
    updates: bool = True


@dataclass(frozen=True)
class Estimate:
    """The work of one row: its results, the updates in all of them, and their seconds (None: not known)."""

    label: str
    results: int = 0
    updates: int = 0
    seconds: float | None = 0.0

    def __add__(self, other: Estimate) -> Estimate:
        known = self.seconds is not None and other.seconds is not None
        seconds = (self.seconds or 0.0) + (other.seconds or 0.0) if known else None
        return Estimate(self.label, self.results + other.results, self.updates + other.updates, seconds)


def describe(by_source: Mapping[str, tuple[Sequence[Row], Sequence[Benchmark]]]) -> str:
    """Return what the comparisons would do, one per source domain ('' where there is none), a line per fact.

    Note: the methods are timed on the first source's data.
    """
    works: dict[tuple[str, Any], Work] = {}  # the rows of a source share it, unless a sweep changes the data
    timings: dict[str, Timing] = {}
    estimates: dict[str, Estimate] = {}
    domains: list[str] = []
    for source, (rows, benchmarks) in by_source.items():
        for row, benchmark in zip(rows, benchmarks, strict=True):
            if (source, row.changes) not in works:
                works[source, row.changes] = work_of(row.cfg, benchmark)
            work = works[source, row.changes]
            if row.label not in timings:
                timings[row.label] = timing(row.cfg, benchmark, work.inputs)
            before = estimates.get(row.label, Estimate(row.label))
            estimates[row.label] = before + estimate(row, work, timings[row.label])
        first = benchmarks[0]
        pair = first.pair_label if isinstance(first, DomainBenchmark) and source else None
        domains += [pair(source, domain.name) if pair else domain.label for domain in first.domains()]
    cfg = rows[0].cfg
    shown = domains if len(domains) <= 4 else [*domains[:2], "...", domains[-1]]
    what = "pairs" if any(by_source) else "domains"
    samples = number_range({n for work in works.values() for n in work.samples})
    epochs = f", {cfg.TEST.EPOCHS} {'epoch' if cfg.TEST.EPOCHS == 1 else 'epochs'}" if _offline(cfg) else ""
    name = f"{cfg.CORRUPTION.DATASET}-{cfg.MODEL.ARCH.replace('/', '_')}-<hash of the weights>-{protocol_name(cfg)}"
    lines = [
        f"data       {cfg.CORRUPTION.DATASET}: {len(domains)} {what} ({', '.join(shown)})",
        f"protocol   {protocol_name(cfg)}{epochs}, {samples} samples in batches of {work.batch_size}",
        f"model      {cfg.MODEL.ARCH}, on {resolve_device(cfg.DEVICE)}",
        f"seeds      {', '.join(map(str, seeds(cfg)))}",
        f"folder     {Path(cfg.SAVE_DIR) / name}",
        "",
        f"{'method':24}{'results':>9}{'updates':>10}{'time':>12}",
        *(_line(one) for one in _with_total(estimates.values())),
        "time: from a few timed batches, one process; training or downloading the source model is not in it",
    ]
    return "\n".join(lines)


def estimate(row: Row, work: Work, timed: Timing) -> Estimate:
    """Return the work of a row on one source's targets.

    Note: passes without updates (fitting a subspace, pseudo-labels) are counted as one prediction of all samples.
    """
    cfg, runs = row.cfg, len(seeds(row.cfg))
    batches = work.batches * runs
    updates = batches * (cfg.TEST.EPOCHS if _offline(cfg) else 1) if timed.updates else 0
    if timed.adapting is None or cfg.TEST.PROTOCOL == "recovery":
        return Estimate(row.label, len(work.samples) * runs, updates, None)
    adapting = updates or (0 if _offline(cfg) else batches)
    seconds = adapting * timed.adapting + (2 * batches * timed.predicting if _offline(cfg) else 0)
    return Estimate(row.label, len(work.samples) * runs, updates, seconds)


def timing(cfg: CfgNode, benchmark: Benchmark, inputs: Tensor) -> Timing:
    """Time a few batches of a method on its network, untrained."""
    model = untrained_model(cfg, benchmark.num_classes, benchmark.family)
    if model is None:
        return Timing(None, 0.0)
    device = resolve_device(cfg.DEVICE)
    model, inputs = model.to(device), inputs.to(device)
    method_class = ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION)
    moments = None
    if forward_method(cfg) and method_class.needs_source_subspace(cfg):
        moments = fit_source_moments(model, [inputs], method_class.value_in(cfg, "channels"))
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
    """Return what one pass over the targets of a comparison is made of."""
    if is_stream(cfg):
        whole = stream_of(cfg, benchmark, seeds(cfg)[0], resolve_device("cpu"))
        return Work([len(whole.plan)], whole.batch_size, next(iter(whole.batches()))[1].inputs)
    domains = benchmark.domains()
    # The domains of a domain-adaptation benchmark differ in size; corruptions are of the same images.
    looked_at = domains if isinstance(benchmark, DomainBenchmark) else domains[:1]
    targets = [benchmark.target(domain, seeds(cfg)[0]) for domain in looked_at]
    samples = [len(target) for target in targets] if len(targets) == len(domains) else [len(targets[0])] * len(domains)
    stream = Stream(targets[0], cfg.TEST.BATCH_SIZE, None, resolve_device("cpu"))
    return Work(samples, cfg.TEST.BATCH_SIZE, next(iter(stream.only([0]))).inputs)


def show_time(seconds: float) -> str:
    """Return a time in the units one would say: ``48 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _offline(cfg: CfgNode) -> bool:
    return cfg.TEST.PROTOCOL != "online" and not is_stream(cfg)


def _with_total(estimates: Iterable[Estimate]) -> list[Estimate]:
    rows = list(estimates)
    return [*rows, sum(rows, Estimate("all"))]


def _line(one: Estimate) -> str:
    took = "not known" if one.seconds is None else show_time(one.seconds)
    return f"{one.label:24}{one.results:9,}{one.updates:10,}{took:>12}"


def _with_dimension(cfg: CfgNode) -> CfgNode:
    """Return ``cfg`` with a fixed d where the method would choose it by a rule, which needs the trained model."""
    method = ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION)
    if "d" not in method.keys or method.value_in(cfg, "d"):
        return cfg
    changed = cfg.clone()
    changed.defrost()
    set_value(changed, method.place_of("d"), _DIMENSION)
    return changed


def _seconds(work: Callable[[], object]) -> float:
    """Return the least time of ``work``; the first call, which pays for buffers, counts only if it takes long."""
    found: list[float] = []
    while len(found) <= _BATCHES and sum(found) < _SECONDS:
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)
