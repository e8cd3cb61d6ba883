"""What a comparison would compute, and how long that would take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from tta_cattan.bench.data import Benchmark, Stream
from tta_cattan.bench.data.domain_stream import stream_of
from tta_cattan.bench.models.zoo import resolve_device, untrained_model
from tta_cattan.bench.run.plan import Row, cell_domains, is_stream, protocol_name, seeds
from tta_cattan.bench.run.setting import rehearse
from tta_cattan.config.declared import set_value
from tta_cattan.methods import ADAPTATION_REGISTRY

if TYPE_CHECKING:
    from yacs.config import CfgNode

_DIMENSION = 4
_BATCHES, _SECONDS = 3, 2.0  # timed of each kind: so many, or fewer where they take longer than this


@dataclass(frozen=True)
class Estimate:
    """The work of one row: its cells, the updates in all of them, and their seconds (None: not known)."""

    label: str
    cells: int
    updates: int
    seconds: float | None


def estimate(row: Row, benchmark: Benchmark) -> Estimate:
    """Time a few batches of a row's method on its network, untrained, and multiply.

    Note: passes without updates (fitting a subspace, pseudo-labels) are counted as one prediction of all samples.
    """
    cfg = row.cfg
    cells = len(cell_domains(cfg, benchmark.domains())) * len(seeds(cfg))
    samples, batch, inputs = _work(cfg, benchmark)
    batches = -(-samples // batch)
    epochs = cfg.TEST.EPOCHS if cfg.TEST.PROTOCOL == "offline" and not is_stream(cfg) else 1
    model = untrained_model(cfg, benchmark.num_classes)
    if model is None or cfg.TEST.PROTOCOL == "recovery":
        return Estimate(row.label, cells, cells * batches * epochs, None)
    device = resolve_device(cfg.DEVICE)
    method = rehearse(_with_dimension(cfg), model.to(device), benchmark)
    inputs = inputs.to(device)
    method.reset()
    updating, predicting = _seconds(lambda: method(inputs)), _seconds(lambda: method.predict(inputs))
    offline = cfg.TEST.PROTOCOL == "offline" and not is_stream(cfg)
    updates = batches * epochs if method.optimizer is not None else 0
    passes = (updates or (0 if offline else batches)) * updating + (2 * batches * predicting if offline else 0)
    return Estimate(row.label, cells, cells * updates, cells * passes)


def describe(rows: Sequence[Row], benchmarks: Sequence[Benchmark], estimates: Sequence[Estimate]) -> str:
    """Return what a comparison would do, a line per fact."""
    cfg, benchmark = rows[0].cfg, benchmarks[0]
    domains = [domain.label for domain in benchmark.domains()]
    samples, batch, _ = _work(cfg, benchmark)
    epochs = f", {cfg.TEST.EPOCHS} epochs" if cfg.TEST.PROTOCOL == "offline" else ""
    shown = domains if len(domains) <= 4 else [*domains[:2], "...", domains[-1]]
    known = [one.seconds for one in estimates if one.seconds is not None]
    total = show_time(sum(known)) if len(known) == len(estimates) else "not known for every method"
    name = f"{cfg.CORRUPTION.DATASET}-{cfg.MODEL.ARCH.replace('/', '_')}-<hash of the weights>-{protocol_name(cfg)}"
    lines = [
        f"data       {cfg.CORRUPTION.DATASET}: {len(domains)} domains ({', '.join(shown)})",
        f"protocol   {protocol_name(cfg)}{epochs}, {samples:,} samples in batches of {batch}",
        f"model      {cfg.MODEL.ARCH}, on {resolve_device(cfg.DEVICE)}",
        f"seeds      {', '.join(map(str, seeds(cfg)))}",
        f"folder     {Path(cfg.SAVE_DIR) / name}",
        "",
        f"{'method':24}{'results':>9}{'updates':>10}{'time':>12}",
    ]
    for one in estimates:
        took = "?" if one.seconds is None else show_time(one.seconds)
        lines.append(f"{one.label:24}{one.cells:9,}{one.updates:10,}{took:>12}")
    results, updates = sum(one.cells for one in estimates), sum(one.updates for one in estimates)
    lines.append(f"{'all':24}{results:9,}{updates:10,}{total:>12}")
    lines.append("time: from a few timed batches, one process; training or downloading the source model is not in it")
    return "\n".join(lines)


def show_time(seconds: float) -> str:
    """Return a time in the units one would say: ``48 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _work(cfg: CfgNode, benchmark: Benchmark) -> tuple[int, int, Tensor]:
    """Return the samples and the batch size of a cell, and one batch."""
    if is_stream(cfg):
        whole = stream_of(cfg, benchmark, seeds(cfg)[0], resolve_device("cpu"))
        return len(whole.plan), whole.batch_size, next(iter(whole.batches()))[1].inputs
    dataset = benchmark.target(benchmark.domains()[0], seeds(cfg)[0])
    stream = Stream(dataset, cfg.TEST.BATCH_SIZE, None, resolve_device("cpu"))
    return len(dataset), cfg.TEST.BATCH_SIZE, next(iter(stream.only([0]))).inputs


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
