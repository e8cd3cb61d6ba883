"""What a run is, told beside its results: its folder, resolved configs, versions and hashes, and the table's head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tta_cattan.bench.results.identity import describe_run, write_run_file
from tta_cattan.bench.results.store import Record
from tta_cattan.bench.run.plan import Job, seeds
from tta_cattan.bench.run.setting import Setting, subspace_hash
from tta_cattan.config import dump_yaml, to_dict
from tta_cattan.util.files import sha256_text, write_text

_LONGEST_SWEEP = 120  # characters of a folder's name; file systems allow 255 for the whole


def run_folder(jobs: Sequence[Job], settings: Mapping[str, Setting]) -> Path:
    """Return the folder of a run: one per data set, source model and protocol; a sweep has one of its own.

    Note: what a sweep changes is left out of the name, which ends in the keys that it changes, or in their number and
    a hash of them where a file system would find them too long.
    """
    names = {
        (job.cfg.CORRUPTION.DATASET, job.cfg.MODEL.ARCH, settings[job.label].loaded.sha256[:8], job.cfg.TEST.PROTOCOL)
        for job in jobs
    }
    parts = [values[0] for values in map(list, map(dict.fromkeys, zip(*names, strict=True))) if len(values) == 1]
    swept = sorted({key for job in jobs for key, _ in job.changes})
    if len("-".join(swept)) > _LONGEST_SWEEP:
        swept = [f"{len(swept)}-keys", sha256_text(" ".join(swept))[:8]]
    name = "-".join([*parts, *(["by", *swept] if swept else [])])
    return Path(jobs[0].cfg.SAVE_DIR) / name.replace("/", "_")


def write_description(folder: Path, jobs: Sequence[Job], settings: Mapping[str, Setting]) -> None:
    """Write what the run is beside its results: the resolved configs, versions, hashes."""
    for job in jobs:
        write_text(folder / f"config-{job.method}-{job.fingerprint}.yaml", dump_yaml(job.cfg))
    first, setting = jobs[0].cfg, settings[jobs[0].label]
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
                "protocol": first.TEST.PROTOCOL,
                "seeds": seeds(first),
                "model_origin": setting.loaded.origin,
                "fingerprints": {job.label: job.fingerprint for job in jobs},
                "models": {label: one.loaded.sha256 for label, one in settings.items()},
                "sweep": {job.label: dict(job.changes) for job in jobs if job.changes},
                "subspaces": {
                    label: {"sha256": subspace_hash(subspace), **subspace.provenance}
                    for label, subspace in subspaces.items()
                },
            },
        ),
    )


def header_lines(jobs: Sequence[Job], settings: Mapping[str, Setting], records: Sequence[Record]) -> list[str]:
    """Return the lines that say what the table is of; one for each part of a sweep that differs in it."""
    lines = []
    for job in jobs:
        cfg = job.cfg
        numbers = sorted({int(record.metrics["n"]) for record in records if record.cell.method == job.label})
        samples = f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"
        epochs = f", {cfg.TEST.EPOCHS} epochs" if cfg.TEST.PROTOCOL == "offline" else ""
        model = f"{cfg.MODEL.ARCH} (sha256 {settings[job.label].loaded.sha256[:16]})"
        lines.append(
            f"{cfg.CORRUPTION.DATASET}, {samples} samples per domain; {model}; {cfg.TEST.PROTOCOL} protocol{epochs}, "
            f"batch {cfg.TEST.BATCH_SIZE}; seeds {', '.join(map(str, seeds(cfg)))}"
        )
    optimisers = [f"{job.label} {job.cfg.OPTIM.METHOD} {job.cfg.OPTIM.LR:g}" for job in jobs]
    return [*dict.fromkeys(lines), "optimiser: " + ", ".join(optimisers)]
