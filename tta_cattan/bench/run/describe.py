"""What is said of a run: beforehand what it would compute and how long that takes; beside its results what it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from tta_cattan.bench.data import Benchmark, Stream
from tta_cattan.bench.data.domain_stream import stream_of
from tta_cattan.bench.models.zoo import resolve_device, untrained_model
from tta_cattan.bench.results.identity import config_path, describe_run, write_run_file
from tta_cattan.bench.results.store import Record
from tta_cattan.bench.results.summary import sample_range
from tta_cattan.bench.run.plan import Row, cell_domains, is_stream, protocol_name, seeds
from tta_cattan.bench.run.setting import Setting, rehearse, subspace_hash
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
