"""The description of a run beside its results: folder, resolved configs, versions, hashes, and the table's header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tta_cattan.bench.results.identity import config_path, describe_run, write_run_file
from tta_cattan.bench.results.store import Record
from tta_cattan.bench.results.summary import sample_range
from tta_cattan.bench.run.plan import Row, is_stream, protocol_name, seeds
from tta_cattan.bench.run.setting import Setting, subspace_hash
from tta_cattan.config import dump_yaml, method_keys, to_dict
from tta_cattan.util.files import sha256_text, write_text

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
