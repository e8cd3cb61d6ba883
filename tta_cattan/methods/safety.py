"""Keeping adaptation safe: updates that are not finite, divergence and collapse, found, told and undone."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tta_cattan.util.state import stateful

logger = logging.getLogger(__name__)

REACTIONS = ("report", "reset")
_TOLD = {"report": "lower the learning rate", "reset": "the method starts anew and rests; lower the learning rate"}

# It diverges where the loss stays above its level by this many times its size, for so many updates.
_FAR = 10.0
_PATIENCE = 5
_MEMORY = 0.9  # share of the past in the loss's level
# A collapse overturns more than this share of what the fresh method is sure of, by so many images in all.
_TOLERATED, _LIMIT = 0.25, 6.0
_EVERY = 16  # batches from one comparison with the fresh method to the next, while nothing is suspected
_LONGEST = 16  # doublings of the rest after a reset
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


def overturned(adapted: Tensor, fresh: Tensor, tolerated: float = _TOLERATED) -> float:
    """``sum_i w_i (1[argmax a_i != argmax f_i] - tolerated)`` of logits a and f, ``w`` the margin of softmax(f).

    Note: an adaptation that helps changes predictions that were unsure; of those that were sure few change. One that
    fails changes both, however evenly its wrong predictions are spread over the classes.
    """
    best = fresh.softmax(1).topk(min(2, fresh.shape[1]), 1)
    changed = adapted.argmax(1) != best.indices[:, 0]
    margin = best.values[:, 0] - best.values[:, -1]
    return (margin * (changed.to(margin) - tolerated)).sum().item()


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

    ``report`` leaves the method as it is, ``reset`` says that it should go back to its start. After the n-th reset it
    rests: it predicts ``16 x 2^n`` batches without an update, so that what collapses again and again seldom is
    collapsed. Counts survive a reset.

    Collapse: every 16th batch is also predicted by the fresh method, as it would be after a reset, and
    ``S <- max(0, S + overturned(adapted, fresh))``. While S is above 0 every batch is; above 6 it is a collapse, which
    is over when S is 0 again.
    """

    def __init__(self, on_collapse: str = "reset", on_divergence: str = "reset") -> None:
        self.on_collapse, self.on_divergence = on_collapse, on_divergence
        self.skipped_steps = self.collapses = self.divergences = self.resets = 0
        self.restart()

    def restart(self) -> None:
        """Forget the levels that predictions and losses had: those to come are of another start."""
        self._classes, self._collapsed = Collapse(), False
        self._overturned, self._unseen = 0.0, 0  # S, and batches since the last comparison
        self._rest = 0  # batches without an update to come
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
        if _is_power_of_two(self.skipped_steps):
            whose = cause if batch_is_finite else "batch"
            logger.warning("the %s is not finite: this update was skipped (%d so far)", whose, self.skipped_steps)
        return batch_is_finite and self._strike("no finite update")

    def leave_out(self) -> None:
        """Count a batch whose images that are not finite teach the method nothing; the others do."""
        self.skipped_steps += 1
        if _is_power_of_two(self.skipped_steps):
            logger.warning("images with NaN or Inf are left out of a batch (%d so far)", self.skipped_steps)

    def rest(self) -> None:
        """Count a reset after an alarm, and rest."""
        self.resets += 1
        self._rest = 1 + (_EVERY << min(self.resets, _LONGEST))

    def rests(self, new_batch: bool) -> bool:
        """Tell whether the present batch is only to be predicted."""
        self._rest = max(0, self._rest - new_batch)
        return self._rest > 0

    def compares(self) -> bool:
        """Tell whether this batch, one more, is to be predicted by the fresh method too."""
        self._unseen += 1
        suspected = self._overturned > 0 and not self._collapsed
        if self._unseen < _EVERY and not suspected:
            return False
        self._unseen = 0
        return True

    def compare(self, adapted: Tensor, fresh: Tensor) -> bool:
        """Take note of a batch's logits (B x C) and those of the fresh method; tell whether a reset is due."""
        self._overturned = min(max(0.0, self._overturned + overturned(adapted, fresh)), 2 * _LIMIT)
        collapsed = self._overturned > (0 if self._collapsed else _LIMIT)
        return self._collapse(collapsed, "predictions that the fresh model is sure of are overturned")

    def watch_classes(self, predicted: Tensor) -> None:
        """Take note of the classes predicted for a batch by a method that has no fresh one to compare with."""
        fallen = self._classes.add(predicted)
        self._collapse(fallen, f"the last predictions fall into about {self._classes.classes:.1f} classes")

    def lost(self) -> bool:
        """Count an update after which the parameters are out of range; nothing is left to go on from but the start."""
        self.divergences += 1
        logger.warning("the parameters left the finite range: lower the learning rate; the method starts anew")
        return True

    def watch(self, loss: float, classes: int) -> bool:
        """Take note of an update's loss; tell whether a reset is due.

        Divergence: the loss stays above its lowest level by ten times its size, and by more than any entropy can.

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
        logger.warning("adaptation diverges: %s, %d times in a row; %s", sight, _PATIENCE, _TOLD[self.on_divergence])
        return self.on_divergence == "reset"

    def _collapse(self, collapsed: bool, sight: str) -> bool:
        """Count a collapse where one begins; tell whether a reset is due."""
        was, self._collapsed = self._collapsed, collapsed
        if not collapsed or was:
            return False
        self.collapses += 1
        if _is_power_of_two(self.collapses):
            told = "adaptation collapses: %s; %s (%d so far)"
            logger.warning(told, sight, _TOLD[self.on_collapse], self.collapses)
        return self.on_collapse == "reset"


def _is_power_of_two(count: int) -> bool:
    """Tell whether to log: after 1, 2, 4, ... of a kind a long stream does not flood the log."""
    return count & (count - 1) == 0
