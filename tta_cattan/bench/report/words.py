"""What the report says in words: what was compared, who leads, what each run was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tta_cattan.bench.report.comparison import Comparison
from tta_cattan.bench.report.pairs import Pair
from tta_cattan.bench.report.reading import Run


def facts(comparison: Comparison) -> list[str]:
    """Return what the comparison is of, in a few words each."""
    records = [record for found in comparison.records.values() for record in found]
    sizes = sorted({int(record.metrics["n"]) for record in records if "n" in record.metrics})
    seeds = sorted({record.cell.seed for record in records})
    methods, domains = len(comparison.summary.methods), len(comparison.summary.domains)
    epochs = comparison.runs[0].fact("config", "TEST", "EPOCHS")
    protocol = f"{comparison.protocol} protocol" if comparison.protocol else ""
    if comparison.protocol == "offline" and epochs:
        protocol += f", {epochs} epochs"
    found = [
        f"{methods} {plural('method', methods)}",
        f"{domains} {plural('domain', domains)}",
        f"{number_range(sizes)} samples per domain" if sizes else "",
        protocol,
        f"{plural('seed', len(seeds))} {', '.join(map(str, seeds))}",
    ]
    return [fact for fact in found if fact]


def verdict(comparison: Comparison, pairs: Mapping[tuple[str, str], Pair]) -> str:
    """Return one sentence: who leads, and whether the lead is more than luck."""
    averages = comparison.summary.averages
    ranked = sorted(
        (m for m in comparison.summary.methods if (m, "accuracy") in averages),
        key=lambda m: -averages[m, "accuracy"].mean,
    )
    if len(ranked) < 2:
        return ""
    first, second = ranked[:2]
    text = f"{first} has the highest mean accuracy ({100 * averages[first, 'accuracy'].mean:.1f} %)"
    pair = pairs.get((first, second))
    if pair is None:
        return f"{text}, ahead of {second}; without predictions per image, nothing can be said about luck."
    if pair.difference.decided and pair.difference.mean > 0:
        return f"{text}; its lead over {second}, {pair.text} points, is more than chance in the choice of images."
    return f"{text}, but its lead over {second}, {pair.text} points, is not decided by these images."


def about(run: Run) -> dict[str, Any]:
    """Return what a run says about itself."""
    versions = run.fact("versions")
    known = {
        "started": run.fact("created"),
        "source model": run.fact("config", "MODEL", "ARCH"),
        "weights (sha256)": run.fact("model_sha256"),
        "weights from": run.fact("extra", "model_origin"),
        "source subspace (sha256)": run.fact("subspace_sha256"),
        "data": run.fact("dataset", "name"),
        "device": run.fact("machine", "device"),
        "processor": run.fact("machine", "processor"),
        "code": run.fact("git_revision"),
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, dict) else None,
        "earlier results, left out": ", ".join(run.left_out),
    }
    return {
        "folder": str(run.folder),
        "fingerprints": {variant.method: variant.fingerprint for variant in run.variants},
        "facts": {name: str(value) for name, value in known.items() if value},
    }


def number_range(numbers: Sequence[int]) -> str:
    """Return the one of sorted numbers, or the first and the last."""
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"


def plural(noun: str, number: int) -> str:
    """Return the noun as it follows the number."""
    return noun if number == 1 else f"{noun}s"
