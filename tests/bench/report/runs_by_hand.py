"""Folders of results written by hand, for what no run of ours writes: gaps, damage, hostile names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tta_cattan.bench.results.identity import config_path
from tta_cattan.bench.results.store import Cell, Record, ResultsStore, Settings

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
    settings: Settings = (),
    config: str = "",
    **info: Any,
) -> Path:
    """Write one record with predictions per (method, domain, seed), and the config's YAML of each method."""
    store = ResultsStore(folder)
    for (method, domain, seed), right in correct.items():
        metrics = {"accuracy": float(right.mean()), "ece": 0.1, "n": len(right), "seconds": 1.5}
        store.append(Record(Cell(method, domain, 5, seed, settings), stamp, metrics, info, predictions(right)))
        if config:
            config_path(folder, method, stamp).write_text(config)
    if description is not None:
        (folder / "run.json").write_text(json.dumps(description))
    return folder


def write_bare_run(folder: Path, description: dict[str, Any]) -> Path:
    """Write results without predictions and curves."""
    store = ResultsStore(folder)
    for method, accuracy, rate in (("tent", 0.5, 0.001), ("ip", 0.6, 0.002)):
        for domain in ("fog", "snow"):
            metrics = {"accuracy": accuracy, "ece": 0.2, "n": 100, "seconds": 2.0}
            store.append(Record(Cell(method, domain, 5, 0), "0123abcd", metrics, {"skipped_steps": 0}))
        config_path(folder, method, "0123abcd").write_text(f"OPTIM: {{LR: {rate}}}\nMODEL: {{ARCH: r}}\n")
    (folder / "run.json").write_text(json.dumps(description))
    return folder
