"""Source recovery: hypotheses that disagree about a sample say that it is not of the target domain."""

from tta_cattan.recovery.agreement import agreement, count_of, least_confident
from tta_cattan.recovery.counts import PREDICTORS, AgreementCounts, Gated
from tta_cattan.recovery.gate import FALLBACKS, SourceRecovery

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
