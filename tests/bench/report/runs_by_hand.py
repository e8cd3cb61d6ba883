"""Folders of results written by hand, for what no run of ours writes: gaps, damage, hostile names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tta_cattan.bench.results.store import Cell, Record, ResultsStore

HOSTILE = "<script>alert('&')</script> | ../../x"


def predictions(correct: np.ndarray, labels: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return the columns of predictions that are right where ``correct`` says so."""
    n = len(correct)
    labels = np.arange(n) % 3 if labels is None else labels
    return {
        "index": np.arange(n, dtype=np.int32),
        "prediction": np.where(correct, labels, labels + 1).astype(np.int16),
        "confidence": np.full(n, 0.5, np.float32),
        "label": labels.astype(np.int16),
    }


def write_run(
    folder: Path,
    correct: dict[tuple[str, str, int], np.ndarray],
    stamp: str = "abc",
    description: dict[str, Any] | None = None,
    **info: Any,
) -> Path:
    """Write one record with predictions per (method, domain, seed)."""
    store = ResultsStore(folder)
    for (method, domain, seed), right in correct.items():
        metrics = {"accuracy": float(right.mean()), "ece": 0.1, "n": len(right), "seconds": 1.5}
        store.append(Record(Cell(method, domain, 5, seed), stamp, metrics, info, predictions(right)))
    if description is not None:
        (folder / "run.json").write_text(json.dumps(description))
    return folder


def write_old_run(folder: Path, description: dict[str, Any]) -> Path:
    """Write lines as the first version wrote them: no predictions, no curves, a config named by the method alone."""
    lines = [
        {
            "schema": 1, "method": method, "domain": domain, "severity": 5, "seed": 0, "fingerprint": "0123abcd",
            "metrics": {"accuracy": accuracy, "ece": 0.2, "n": 100, "seconds": 2.0}, "info": {"skipped_steps": 0},
        }
        for method, accuracy in (("tent", 0.5), ("ip", 0.6))
        for domain in ("fog", "snow")
    ]  # fmt: skip
    folder.mkdir()
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "run.json").write_text(json.dumps(description))
    (folder / "config-tent.yaml").write_text("OPTIM: {LR: 0.001}\nMODEL: {ARCH: r}\n")
    (folder / "config-ip.yaml").write_text("OPTIM: {LR: 0.002}\nMODEL: {ARCH: r}\n")
    return folder
