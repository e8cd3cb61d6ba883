"""Source recovery: hypotheses that disagree about a sample say that it is not of the target domain."""

from tta_cattan.bench.protocols.recovery_gate.agreement import agreement, count_of, least_confident
from tta_cattan.bench.protocols.recovery_gate.counts import PREDICTORS, AgreementCounts, Gated
from tta_cattan.bench.protocols.recovery_gate.gate import FALLBACKS, SourceRecovery

__all__ = [
    "FALLBACKS",
    "PREDICTORS",
    "AgreementCounts",
    "Gated",
    "SourceRecovery",
    "agreement",
    "count_of",
    "least_confident",
]
