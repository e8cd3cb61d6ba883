"""Keeping adaptation safe: updates that are not finite, divergence and class collapse, found and told."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tta_cattan.util.state import stateful

logger = logging.getLogger(__name__)

REACTIONS = ("report", "reset")

# It diverges where the loss stays above its level by this many times its size, for so many updates.
_FAR = 10.0
_PATIENCE = 5
_MEMORY = 0.9  # share of the past in the loss's level
_FALLEN, _CONFIRMED, _OF_FROZEN = 0.35, 0.55, 0.6
_RECENT = 64  # predictions that a collapse is looked for in, or those of two batches
_FEW = 1.8  # effective classes: where there never were more, chance alone takes them away for a while


def all_finite(tensor: Tensor) -> bool:
    """Tell whether there is no NaN and no Inf: the sum shows it in one pass, unless finite numbers overflow in it."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def in_range(tensors: Sequence[Tensor]) -> bool:
    """Tell whether ``sum ||t||^2`` is finite in float32: no NaN, no Inf, nothing whose square Adam could not hold."""
    norms = torch._foreach_norm([tensor.detach().float() for tensor in tensors])  # as in torch's clip_grad_norm_
    return math.isfinite(torch.stack([norm.to(norms[0].device) for norm in norms]).square().sum().item())


def effective_classes(predicted: Tensor) -> float:
    """``exp(-sum_c m_c log m_c)`` of the shares m of predicted classes: as many as there seem to be; 0 of none."""
    if not len(predicted):
        return 0.0
    shares = torch.bincount(predicted).double() / len(predicted)
    return math.exp(torch.special.entr(shares).sum().item())


@stateful
class Collapse:
    """Finds predictions that fall into few classes, by the effective number ``c`` of those predicted last.

    ``r = (c - 1) / (C - 1)``, with C the highest number so far, is below 0.35 in a collapse. Where the predictions of
    the frozen network are given too, below 0.55 is enough if it is also below 0.6 of theirs: where both fall, the data
    has changed.
    """

    def __init__(self) -> None:
        self.classes = 0.0  # c
        self._recent = torch.empty(0, dtype=torch.long)
        self._frozen = torch.empty(0, dtype=torch.long)
        self._most, self._most_frozen = 1.0, 1.0

    def add(self, predicted: Tensor, frozen: Tensor | None = None) -> bool:
        """Take note of the classes predicted for a batch; tell whether the last predictions are a collapse."""
        size = max(2 * len(predicted), _RECENT)
        self._recent = torch.cat([self._recent, predicted.cpu()])[-size:]
        self.classes = effective_classes(self._recent)
        self._most = max(self._most, self.classes)
        limit = _FALLEN
        if frozen is not None:
            self._frozen = torch.cat([self._frozen, frozen.cpu()])[-size:]
            theirs = effective_classes(self._frozen)
            self._most_frozen = max(self._most_frozen, theirs)
            limit = min(_CONFIRMED, _OF_FROZEN * _ratio(theirs, self._most_frozen))
        return len(self._recent) >= _RECENT // 2 and _ratio(self.classes, self._most) < limit


def _ratio(classes: float, most: float) -> float:
    return (classes - 1) / (most - 1) if most > _FEW else 1.0


@stateful
class Safety:
    """What went wrong while a method adapted: counted for the result, told in the log, answered by the keys.

    ``report`` leaves the method as it is, ``reset`` says that it should go back to its start. Counts survive a reset.
    """

    def __init__(self, on_collapse: str = "report", on_divergence: str = "report") -> None:
        self.on_collapse, self.on_divergence = on_collapse, on_divergence
        self.skipped_steps = self.collapses = self.divergences = self.resets = 0
        self.restart()

    def restart(self) -> None:
        """Forget the levels that predictions and losses had: those to come are of another start."""
        self._classes, self._collapsed = Collapse(), False
        self._level = self._lowest = 0.0
        self._updates = self._strikes = 0

    def describe(self) -> dict[str, int]:
        """Return the counts that belong to a result."""
        return {
            "skipped_steps": self.skipped_steps,
            "collapses": self.collapses,
            "divergences": self.divergences,
            "safety_resets": self.resets,
        }

    def skip(self, cause: str, x: Tensor) -> bool:
        """Count an update that was not made because ``cause`` is not finite; tell whether a reset is due.

        Note: a finite batch that gives no finite update speaks against the model, a spoilt one does not.
        """
        self.skipped_steps += 1
        batch_is_finite = all_finite(x)
        if self.skipped_steps & (self.skipped_steps - 1) == 0:  # 1, 2, 4, ...: a spoilt stream does not flood the log
            whose = cause if batch_is_finite else "batch"
            logger.warning("the %s is not finite: this update was skipped (%d so far)", whose, self.skipped_steps)
        return batch_is_finite and self._strike("no finite update")

    def watch(self, logits: Tensor, loss: float) -> bool:
        """Take note of an update's logits (B x C) and loss; tell whether a reset is due."""
        diverged = self._watch_loss(loss, logits.shape[1])
        return self._watch_classes(logits.detach()) or diverged

    def lost(self) -> bool:
        """Count an update after which the parameters are out of range; nothing is left to go on from but the start."""
        self.divergences += 1
        logger.warning("the parameters left the finite range: lower the learning rate; the method starts anew")
        return True

    def _watch_loss(self, loss: float, classes: int) -> bool:
        """Divergence: the loss stays above its lowest level by ten times its size, and by more than any entropy can.

        Note: the level is the running mean; a loss that grows slowly would take it along, so that its lowest counts.
        """
        low = self._lowest
        if self._updates >= _PATIENCE and loss - low > max(math.log(classes), _FAR * abs(low)):
            return self._strike(f"a loss of {loss:.4g} after a level of {low:.4g}")
        self._strikes = 0
        self._updates += 1
        self._level += max(1 - _MEMORY, 1 / self._updates) * (loss - self._level)
        # The first few losses make a level, not yet a low.
        self._lowest = self._level if self._updates <= _PATIENCE else min(low, self._level)
        return False

    def _strike(self, sight: str) -> bool:
        """Count one more update in a row that went wrong; at the limit of patience that is a divergence."""
        self._strikes += 1
        if self._strikes != _PATIENCE:
            return False
        self.divergences += 1
        logger.warning("adaptation diverges: %s, %d times in a row; lower the learning rate", sight, _PATIENCE)
        return self.on_divergence == "reset"

    def _watch_classes(self, logits: Tensor) -> bool:
        was, self._collapsed = self._collapsed, self._classes.add(logits.max(1).indices)  # faster than argmax
        if not self._collapsed or was:
            return False
        self.collapses += 1
        logger.warning(
            "adaptation collapses: the last predictions fall into about %.1f of %d classes; lower the learning rate, "
            "or mix the classes of the stream", self._classes.classes, logits.shape[1],
        )  # fmt: skip
        return self.on_collapse == "reset"
