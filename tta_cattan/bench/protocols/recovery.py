"""The recovery protocol: several hypotheses adapted offline, then a mix of source and target samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tta_cattan.bench.data.stream import Stream
from tta_cattan.bench.protocols.evaluation import Evaluation
from tta_cattan.bench.protocols.offline import adapt_offline
from tta_cattan.bench.protocols.recovery_gate import (
    PREDICTORS,
    AgreementCounts,
    SourceRecovery,
    count_of,
    least_confident,
)
from tta_cattan.methods.base import AdaptationMethod
from tta_cattan.util.errors import UserError


def adapt_hypotheses(
    make: Callable[[], AdaptationMethod],
    stream: Stream,
    epochs: int = 5,
    k: int = 3,
    fraction: float = 2 / 3,
    on_batch: Callable[[], None] = lambda: None,
) -> list[AdaptationMethod]:
    """Return ``k`` methods adapted to all of ``stream``, each next one beginning with what the last was unsure about.

    What it learns beforehand (CATTAn: ``W_t``) it learns from the ``fraction`` of the samples with the lowest
    confidence under the previous hypothesis; a method that learns nothing then is updated on them once instead.
    Nothing else differs: ``make`` gives the same method, and the batches of the epochs have the same order.
    """
    hypotheses: list[AdaptationMethod] = []
    doubtful: Stream | None = None
    while len(hypotheses) < k:
        if hypotheses:
            confidence = _confidence(hypotheses[-1], stream, on_batch)
            doubtful = stream.restricted(least_confident(confidence, fraction))
        method = make()
        if method.optimizer is None:
            raise UserError(
                f"source recovery compares adapted hypotheses, and {type(method).__name__} adapts nothing: all of them "
                "would be the same; choose another MODEL.ADAPTATION"
            )
        if not hypotheses:
            _check_fraction(method, len(stream.dataset), fraction)
        adapt_offline(method, stream, epochs, on_batch, doubtful)
        hypotheses.append(method)
    return hypotheses


def _check_fraction(method: AdaptationMethod, n: int, fraction: float) -> None:
    """Refuse, before the first hypothesis, a dimension that cannot be fitted to what the next ones begin with."""
    left = count_of(fraction, n)
    if method.d >= left:
        raise UserError(
            f"RECOVERY.FRACTION = {fraction:.3g} leaves {left} of {n} samples for the next subspace, too few for "
            f"{method.d} directions: raise the fraction, lower the method's D, or give more samples"
        )


def evaluate_mix(
    recovery: SourceRecovery, mix: Stream, is_source: Tensor, on_batch: Callable[[], None] = lambda: None
) -> tuple[AgreementCounts, Evaluation]:
    """Return the counts from which every gate follows, and the ungated evaluation of the first hypothesis.

    ``is_source`` says of each sample of the mix whether it is of the source domain; the models do not see it.
    """
    evaluations = {predictor: Evaluation() for predictor in PREDICTORS}
    agreements = []
    for batch in mix:
        adapted, qbar = recovery.opinions(batch.inputs)
        fallbacks = {name: recovery.fall_back(batch.inputs, name) for name in PREDICTORS[1:]}
        for name, logits in {"adapted": adapted, **fallbacks}.items():
            evaluations[name].add(batch.indices, logits, batch.labels)
        agreements.append(qbar.cpu())
        on_batch()
    first = evaluations["adapted"]
    correct = {name: found.prediction == found.label for name, found in evaluations.items()}
    counts = AgreementCounts.of(torch.cat(agreements), len(recovery.hypotheses), is_source[first.index], correct)
    return counts, first


def run_recovery(
    make: Callable[[], AdaptationMethod],
    source: nn.Module,
    target: Stream,
    mix: Stream,
    is_source: Tensor,
    epochs: int = 5,
    k: int = 3,
    fraction: float = 2 / 3,
    on_batch: Callable[[], None] = lambda: None,
) -> tuple[AgreementCounts, Evaluation, AdaptationMethod]:
    """Adapt ``k`` hypotheses to the target, then measure them on the mix; the first hypothesis comes back too."""
    hypotheses = adapt_hypotheses(make, target, epochs, k, fraction, on_batch)
    counts, ungated = evaluate_mix(SourceRecovery(hypotheses, source), mix, is_source, on_batch)
    return counts, ungated, hypotheses[0]


def _confidence(method: AdaptationMethod, stream: Stream, on_batch: Callable[[], None]) -> Tensor:
    """Return the confidence of a method in each sample, by its place in the data set."""
    evaluation = Evaluation()
    for batch in stream:
        evaluation.add(batch.indices, method.predict(batch.inputs), batch.labels)
        on_batch()
    confidence = torch.empty(len(evaluation.index))
    confidence[evaluation.index] = evaluation.confidence
    return confidence
