"""Source recovery: hypotheses adapted to a target domain disagree about samples from elsewhere.

``K`` hypotheses of one method are adapted to the target alone. On a mix of source and target samples, a sample on which
they disagree is taken as source data and gets the prediction of a fall-back. Only counts per level of agreement are
stored: the results for every threshold and fall-back follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset
from yacs.config import CfgNode

from tta_cattan.bench.data.benchmark import Benchmark
from tta_cattan.bench.data.stream import Stream
from tta_cattan.bench.protocols.evaluation import Evaluation, predict_all
from tta_cattan.bench.protocols.one_domain import adapt_offline
from tta_cattan.bench.results.store import Record
from tta_cattan.methods import AdaptationMethod, CATTAn
from tta_cattan.metrics import auroc
from tta_cattan.util.errors import UserError, chosen

FALLBACKS = ("bypass", "source")
# The first hypothesis; the same without its alignment or input transformation; the unadapted source model.
PREDICTORS = ("adapted", *FALLBACKS)
ORIGINS = ("source", "target")
_KEY = "agreement"  # of a record's facts


def agreement(probabilities: Tensor) -> Tensor:
    """``qbar(x) = 1/K sum_k [argmax mean_{j != k} p_j(x) = argmax p_k(x)]`` for K x n x C probabilities.

    Note: a sample for which any hypothesis gives NaN has agreement 0.
    """
    n_hypotheses = len(probabilities)
    if n_hypotheses < 2:
        raise UserError(f"RECOVERY.K = {n_hypotheses}: agreement needs at least 2 hypotheses")
    # The others' mean itself, not the sum minus one's own: a tie must not be decided by rounding.
    others = [torch.cat([probabilities[:k], probabilities[k + 1 :]]).mean(0) for k in range(n_hypotheses)]
    agreed = torch.stack(others).argmax(2) == probabilities.argmax(2)
    finite = torch.isfinite(probabilities).all(2).all(0)
    return (agreed & finite).float().mean(0)


def least_confident(confidence: Tensor, fraction: float) -> Tensor:
    """Return the indices of the ``ceil(fraction n)`` lowest of n confidences; ties keep their order.

    Note: NaN counts as the lowest.
    """
    return confidence.nan_to_num(nan=-1.0).argsort(stable=True)[: _count_of(fraction, len(confidence))]


def _count_of(fraction: float, n: int) -> int:
    """Return ``ceil(fraction n)``, at least 1."""
    return max(math.ceil(fraction * n - 1e-9), 1)  # 2/3 of 9 is 6, whatever the float's last digit says


@dataclass(frozen=True)
class Gated:
    """Accuracies (fractions) on source and target samples before and after a gate, and its detection rates."""

    source_before: float
    source_after: float
    target_before: float
    target_after: float
    detection: float  # source samples that were taken as source
    false_alarms: float  # target samples that were taken as source


@dataclass(frozen=True)
class AgreementCounts:
    """Per origin and agreement level q = 0..K: the samples (``n``), and how many each predictor gets right."""

    counts: Mapping[str, Mapping[str, Sequence[int]]]

    @classmethod
    def of(cls, qbar: Tensor, k: int, is_source: Tensor, correct: Mapping[str, Tensor]) -> AgreementCounts:
        """Count n samples by agreement and origin; ``correct`` says which of them each predictor gets right."""
        level = (qbar * k).round().long()
        columns = {"n": torch.ones_like(is_source), **correct}
        counts = {}
        for origin, members in zip(ORIGINS, (is_source, ~is_source), strict=True):
            if not members.any():
                raise UserError(f"the mix has no {origin} sample: recovery is measured on samples of both domains")
            counts[origin] = {
                name: torch.bincount(level[members & column], minlength=k + 1).tolist()
                for name, column in columns.items()
            }
        return cls(counts)

    @property
    def k(self) -> int:
        return len(self.counts["source"]["n"]) - 1

    def thresholds(self) -> list[float]:
        """Return every distinct threshold: ``0, 1/K, ..., 1`` (0 gates nothing, 1 all but unanimous samples)."""
        return [level / self.k for level in range(self.k + 1)]

    def accuracy(self, origin: str, predictor: str) -> float:
        return sum(self.counts[origin][predictor]) / sum(self.counts[origin]["n"])

    def gate(self, tau: float, fallback: str) -> Gated:
        """Return the accuracies if samples with ``qbar < tau`` get the fall-back's prediction."""
        flagged = [level / self.k < tau for level in range(self.k + 1)]
        after, rate = {}, {}
        for origin in ORIGINS:
            rows = self.counts[origin]
            n = sum(rows["n"])
            after[origin] = sum(rows[fallback if out else "adapted"][q] for q, out in enumerate(flagged)) / n
            rate[origin] = sum(count for count, out in zip(rows["n"], flagged, strict=True) if out) / n
        before = {origin: self.accuracy(origin, "adapted") for origin in ORIGINS}
        return Gated(
            before["source"], after["source"], before["target"], after["target"], rate["source"], rate["target"]
        )

    def auroc(self) -> float:
        """Return the AUROC of low agreement as a detector of source samples: 0.5 is chance, 1 is perfect."""
        levels = torch.arange(self.k + 1)
        scores = [levels.repeat_interleave(torch.tensor(self.counts[origin]["n"])) for origin in ORIGINS]
        return auroc(-torch.cat(scores), torch.arange(sum(map(len, scores))) < len(scores[0]))


def agreement_counts(records: Iterable[Record]) -> list[AgreementCounts]:
    """Return the counts of those records that the recovery protocol produced."""
    return [AgreementCounts(record.info[_KEY]) for record in records if _KEY in record.info]


class SourceRecovery(nn.Module):
    """Hypotheses of one method on one target domain; a sample on which they disagree is taken as source data.

    ``forward(x)`` gives the first hypothesis' logits where ``qbar >= tau`` and the fall-back's elsewhere, sample by
    sample: ``bypass`` (the paper's) leaves out what the method inserted into the network and keeps the adapted
    normalisation, ``source`` is the unadapted source model. A method that inserts nothing falls back to the source
    model either way.

    Note: the gate chooses between the logits of two passes over the same batch, so no sample's logits depend on which
    others were gated.
    """

    def __init__(
        self, hypotheses: Sequence[AdaptationMethod], source: nn.Module, tau: float = 0.75, fallback: str = "bypass"
    ) -> None:
        super().__init__()
        if len(hypotheses) < 2:
            raise UserError(f"source recovery compares hypotheses and got {len(hypotheses)}: adapt at least 2")
        self.hypotheses = nn.ModuleList(hypotheses)
        self.source = source.eval().requires_grad_(False)
        self.tau = tau
        self.fallback = chosen("fallback", fallback, FALLBACKS)

    @torch.no_grad()
    def opinions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first hypothesis' logits and the agreement ``qbar`` of all, for a batch."""
        logits = [hypothesis.predict(x) for hypothesis in self.hypotheses]
        return logits[0], agreement(torch.stack(logits).softmax(2))

    @torch.no_grad()
    def fall_back(self, x: Tensor, fallback: str) -> Tensor:
        """Return the fall-back's logits for a batch, used for its gated samples."""
        bypassed = getattr(self.hypotheses[0], "predict_bypassed", None)  # CATTAn and IP have it: they insert something
        return bypassed(x) if fallback == "bypass" and bypassed is not None else self.source(x).float()

    def forward(self, x: Tensor) -> Tensor:
        logits, qbar = self.opinions(x)
        gated = qbar < self.tau
        if not gated.any():
            return logits
        return torch.where(gated[:, None], self.fall_back(x, self.fallback), logits)

    def train(self, mode: bool = True) -> SourceRecovery:
        """Set the mode of the wrapper only: the models' modes belong to the methods."""
        self.training = mode
        return self


def adapt_hypotheses(
    make: Callable[[], AdaptationMethod],
    stream: Stream,
    epochs: int = 5,
    k: int = 3,
    fraction: float = 2 / 3,
    on_batch: Callable[[], None] = lambda: None,
) -> list[AdaptationMethod]:
    """Return ``k`` methods adapted to all of ``stream``, each starting from what the previous was unsure of.

    Its first pass (in which CATTAn fits ``W_t``) sees the ``fraction`` of the samples with the lowest confidence under
    the previous hypothesis; a method without such a pass is updated once on them instead. Nothing else differs:
    ``make`` returns the same method, and the epochs see the batches in the same order.
    """
    hypotheses: list[AdaptationMethod] = []
    doubtful: Stream | None = None
    while len(hypotheses) < k:
        if hypotheses:
            last = predict_all(hypotheses[-1], stream, on_batch)
            confidence = last.confidence[last.index.argsort()]  # in the order of the data set
            doubtful = stream.restricted(least_confident(confidence, fraction))
        method = make()
        if not method.adapts:
            raise UserError(
                f"source recovery compares adapted hypotheses, and {type(method).__name__} updates no parameters here: "
                "all of them would be the same; choose another MODEL.ADAPTATION, or CLASSES.USE False for CATTAn+"
            )
        if not hypotheses:
            _check_fraction(method, len(stream.dataset), fraction)
        adapt_offline(method, stream, epochs, on_batch, doubtful)
        hypotheses.append(method)
    return hypotheses


def _check_fraction(method: AdaptationMethod, n: int, fraction: float) -> None:
    """Refuse, before the first hypothesis is adapted, a dimension too large to be fitted to the doubtful samples."""
    left = _count_of(fraction, n)
    d = method.d if isinstance(method, CATTAn) else 0
    if d >= left:
        raise UserError(
            f"RECOVERY.FRACTION = {fraction:.3g} leaves {left} of {n} samples for the next subspace, too few for "
            f"{d} directions: raise the fraction, lower the method's D, or give more samples"
        )


def half_and_half(source: Dataset, target: Dataset, seed: int) -> tuple[Dataset, Tensor]:
    """Return a mix with as many samples of each as the smaller has, drawn by ``seed``, and a mask of source samples."""
    n = min(len(source), len(target))
    generator = torch.Generator().manual_seed(seed)
    parts = [Subset(data, torch.randperm(len(data), generator=generator)[:n].tolist()) for data in (source, target)]
    return ConcatDataset(parts), torch.arange(2 * n) < n


def evaluate_mix(
    recovery: SourceRecovery, mix: Stream, is_source: Tensor, on_batch: Callable[[], None] = lambda: None
) -> tuple[AgreementCounts, Evaluation]:
    """Return the counts from which every gate follows, and the ungated evaluation of the first hypothesis.

    ``is_source`` marks the source samples of the mix; the models do not see it.
    """
    evaluations = {predictor: Evaluation() for predictor in PREDICTORS}
    agreements = []
    for batch in mix:
        adapted, qbar = recovery.opinions(batch.inputs)
        fallbacks = {name: recovery.fall_back(batch.inputs, name) for name in FALLBACKS}
        for name, logits in {"adapted": adapted, **fallbacks}.items():
            evaluations[name].add(batch.indices, logits, batch.labels)
        agreements.append(qbar.cpu())
        on_batch()
    first = evaluations["adapted"]
    correct = {name: found.correct for name, found in evaluations.items()}
    counts = AgreementCounts.of(torch.cat(agreements), len(recovery.hypotheses), is_source[first.index], correct)
    return counts, first


def run_recovery(
    make: Callable[[], AdaptationMethod],
    source: nn.Module,
    benchmark: Benchmark,
    target: Stream,
    cfg: CfgNode,
    seed: int,
    on_batch: Callable[[], None] = lambda: None,
) -> tuple[dict[str, float], dict[str, Any]]:
    """Adapt hypotheses to ``target`` and measure them on a mix; return the ungated metrics, and facts with the counts.

    Note: the mix's source samples come from the benchmark's source data, which the source model was trained on.
    """
    if not benchmark.has_source():
        raise UserError(
            f"source recovery is measured on a mix of source and target samples, and {benchmark.name} has no source "
            "data: set DATA.SOURCE_DIR to source images"
        )
    mixed, is_source = half_and_half(benchmark.source(), target.dataset, seed)
    # Shuffled whatever TEST.ORDER says: in the mix's own order a batch would come from one domain alone.
    mix = replace(target, dataset=mixed, seed=seed)
    node = cfg.RECOVERY
    hypotheses = adapt_hypotheses(make, target, cfg.TEST.EPOCHS, node.K, node.FRACTION, on_batch)
    counts, ungated = evaluate_mix(SourceRecovery(hypotheses, source), mix, is_source, on_batch)
    metrics = {
        **ungated.metrics(),
        "source_accuracy": counts.accuracy("source", "adapted"),
        "target_accuracy": counts.accuracy("target", "adapted"),
        "auroc": counts.auroc(),
    }
    return metrics, {**hypotheses[0].describe(), _KEY: dict(counts.counts)}
