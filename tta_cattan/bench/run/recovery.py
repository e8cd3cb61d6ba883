"""A cell of the recovery protocol: its data, and what is kept of it so that every gate follows without the models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from tta_cattan.bench.data import Stream
from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.data.mixture import half_and_half
from tta_cattan.bench.protocols import run_recovery
from tta_cattan.bench.protocols.recovery_gate import AgreementCounts
from tta_cattan.bench.results.store import Record
from tta_cattan.methods import AdaptationMethod
from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from yacs.config import CfgNode

_KEY = "agreement"


def recovery_cell(
    make: Callable[[], AdaptationMethod],
    source: nn.Module,
    benchmark: Benchmark,
    target: Stream,
    cfg: CfgNode,
    seed: int,
    on_batch: Callable[[], None],
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the metrics (before any gate) and the facts of one cell, the counts for the gates among them.

    Note: the source samples are of the benchmark's source data, which the source model has been trained on.
    """
    data = benchmark.source()
    if data is None:
        raise UserError(
            f"source recovery is measured on a mix of source and target samples, and {benchmark.name} has no source "
            "data: set DATA.SOURCE_DIR to source images"
        )
    mixed, is_source = half_and_half(data, target.dataset, seed)
    # Shuffled whatever TEST.ORDER says: in the mix's own order every batch would be of one domain alone.
    mix = replace(target, dataset=mixed, seed=seed)
    node = cfg.RECOVERY
    counts, ungated, first = run_recovery(
        make, source, target, mix, is_source, cfg.TEST.EPOCHS, node.K, node.FRACTION, on_batch
    )
    metrics = {
        **ungated.metrics(),
        "source_accuracy": counts.accuracy("source", "adapted"),
        "target_accuracy": counts.accuracy("target", "adapted"),
        "auroc": counts.auroc(),
    }
    return metrics, {**first.describe(), _KEY: counts.to_dict()}


def agreement_counts(records: Iterable[Record]) -> list[AgreementCounts]:
    """Return the counts of the records that a recovery run made."""
    return [AgreementCounts.from_dict(record.info[_KEY]) for record in records if _KEY in record.info]
