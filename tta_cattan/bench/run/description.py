"""The description of a run beside its results: folder, resolved configs, versions, hashes, and the table's header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tta_cattan.bench.results.identity import config_path, describe_run, write_run_file
from tta_cattan.bench.results.store import Record
from tta_cattan.bench.results.summary import sample_range
from tta_cattan.bench.run.plan import Job, seeds
from tta_cattan.bench.run.setting import Setting, subspace_hash
from tta_cattan.config import dump_yaml, to_dict
from tta_cattan.util.files import sha256_text, write_text

_LONGEST_SWEEP = 120  # characters; file systems allow 255 for the whole name


def run_folder(jobs: Sequence[Job], settings: Mapping[str, Setting]) -> Path:
    """Return the folder of a run: one per data set, source model and protocol, and one per set of swept keys.

    Note: a sweep's folder is named after the swept keys, or after their number and hash if they are too long; what the
    sweep changes is left out of the rest of the name.
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
    """Write the resolved configs and ``run.json``: versions, machine, hashes."""
    for job in jobs:
        write_text(config_path(folder, job.method, job.fingerprint), dump_yaml(job.cfg))
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
    """Return the lines above the table: data, model, protocol and seeds, one line per combination, and optimisers."""
    lines = []
    for job in jobs:
        cfg = job.cfg
        samples = sample_range(record for record in records if record.cell.label == job.label)
        epochs = f", {cfg.TEST.EPOCHS} epochs" if cfg.TEST.PROTOCOL == "offline" else ""
        model = f"{cfg.MODEL.ARCH} (sha256 {settings[job.label].loaded.sha256[:16]})"
        lines.append(
            f"{cfg.CORRUPTION.DATASET}, {samples} samples per domain; {model}; {cfg.TEST.PROTOCOL} protocol{epochs}, "
            f"batch {cfg.TEST.BATCH_SIZE}; seeds {', '.join(map(str, seeds(cfg)))}"
        )
    optimisers = [f"{job.label} {job.cfg.OPTIM.METHOD} {job.cfg.OPTIM.LR:g}" for job in jobs]
    return [*dict.fromkeys(lines), "optimiser: " + ", ".join(optimisers)]
