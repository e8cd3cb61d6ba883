"""Safe adaptation: detect, log and undo updates that are not finite, divergence and collapse."""

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

# Divergence: the loss exceeds its lowest level by more than this many times that level, for so many updates in a row.
_FAR = 10.0
_PATIENCE = 5
_MEMORY = 0.9  # weight of the past in the running mean of the loss
# Collapse: more than this share of the fresh method's confident predictions is overturned, by so many images in total.
_TOLERATED, _LIMIT = 0.25, 6.0
_EVERY = 16  # batches between comparisons with the fresh method, while nothing is suspected
_LONGEST = 16  # most doublings of the rest after a reset
_FALLEN, _CONFIRMED, _OF_FROZEN = 0.35, 0.55, 0.6
_RECENT = 64  # number of last predictions checked for collapse; at least those of two batches
_FEW = 1.8  # effective classes; with no more than this ever seen, chance alone can make them disappear for a while


def all_finite(tensor: Tensor) -> bool:
    """Return whether there is no NaN or Inf; the sum shows it in one pass, unless finite values overflow in it."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def in_range(tensors: Sequence[Tensor]) -> bool:
    """Return whether ``sum ||t||^2`` is finite in float32: no NaN, no Inf, no value whose square overflows in Adam."""
    norms = torch._foreach_norm([tensor.detach().float() for tensor in tensors])  # as in torch's clip_grad_norm_
    return math.isfinite(torch.stack([norm.to(norms[0].device) for norm in norms]).square().sum().item())


def effective_classes(predicted: Tensor) -> float:
    """Return the effective number of predicted classes, ``exp(-sum_c m_c log m_c)`` of their shares m; 0 if none."""
    if not len(predicted):
        return 0.0
    shares = torch.bincount(predicted).double() / len(predicted)
    return math.exp(torch.special.entr(shares).sum().item())


def overturned(adapted: Tensor, fresh: Tensor, tolerated: float = _TOLERATED) -> float:
    """Return ``sum_i w_i (1[argmax a_i != argmax f_i] - tolerated)`` of logits a and f, ``w`` the margin of softmax(f).

    Note: adaptation that helps changes uncertain predictions and few confident ones. Adaptation that fails changes
    both, however evenly its wrong predictions are spread over the classes.
    """
    best = fresh.softmax(1).topk(min(2, fresh.shape[1]), 1)
    changed = adapted.argmax(1) != best.indices[:, 0]
    margin = best.values[:, 0] - best.values[:, -1]
    return (margin * (changed.to(margin) - tolerated)).sum().item()


@stateful
class Collapse:
    """Detects predictions that collapse into few classes, from the effective number ``c`` of the last ones predicted.

    ``r = (c - 1) / (C - 1)``, with C the highest number so far, is below 0.35 in a collapse. If the predictions of the
    frozen network are given too, r must instead be below 0.55 and below 0.6 times theirs: if both fall, the data has
    changed.
    """

    def __init__(self) -> None:
        self.classes = 0.0  # c
        self._recent = torch.empty(0, dtype=torch.long)
        self._frozen = torch.empty(0, dtype=torch.long)
        self._most, self._most_frozen = 1.0, 1.0

    def add(self, predicted: Tensor, frozen: Tensor | None = None) -> bool:
        """Add the classes predicted for a batch; return whether the last predictions have collapsed."""
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
    """Counts what goes wrong during adaptation for the result, logs it, and reacts as the keys say.

    ``report`` leaves the method as it is, ``reset`` asks for a reset to its initial state. After the n-th reset it
    rests: it predicts ``16 x 2^n`` batches without an update, so that a method that keeps collapsing rarely is in a
    collapse. Counts survive a reset.

    Collapse: every 16th batch is also predicted by the fresh method, as it would be after a reset, and
    ``S <- max(0, S + overturned(adapted, fresh))``. Once S is above 0, every batch is. S above 6 is a collapse, which
    ends when S is back at 0; until then it is every 16th batch again.
    """

    def __init__(self, on_collapse: str = "reset", on_divergence: str = "reset") -> None:
        self.on_collapse, self.on_divergence = on_collapse, on_divergence
        self.skipped_steps = self.collapses = self.divergences = self.resets = 0
        self.restart()

    def restart(self) -> None:
        """Forget the levels of past predictions and losses, since adaptation starts over."""
        self._classes, self._collapsed = Collapse(), False
        self._overturned, self._unseen = 0.0, 0  # S, and batches since the last comparison
        self._rest = 0  # batches left without an update
        self._level = self._lowest = 0.0
        self._updates = self._strikes = 0

    def describe(self) -> dict[str, int]:
        """Return the counts to record with a result."""
        return {
            "skipped_steps": self.skipped_steps,
            "collapses": self.collapses,
            "divergences": self.divergences,
            "safety_resets": self.resets,
        }

    def skip(self, cause: str, x: Tensor) -> bool:
        """Count an update that was skipped because ``cause`` is not finite; return whether a reset is due.

        Note: no finite update on a finite batch is evidence against the model; on a corrupt batch it is not.
        """
        self.skipped_steps += 1
        batch_is_finite = all_finite(x)
        if _is_power_of_two(self.skipped_steps):
            whose = cause if batch_is_finite else "batch"
            logger.warning("the %s is not finite: this update was skipped (%d so far)", whose, self.skipped_steps)
        return batch_is_finite and self._strike("no finite update")

    def leave_out(self) -> None:
        """Count a batch from which images that are not finite were left out; the others are used."""
        self.skipped_steps += 1
        if _is_power_of_two(self.skipped_steps):
            logger.warning("images with NaN or Inf are left out of a batch (%d so far)", self.skipped_steps)

    def rest(self) -> None:
        """Count a reset after an alarm and start resting."""
        self.resets += 1
        self._rest = 1 + (_EVERY << min(self.resets, _LONGEST))

    def rests(self, new_batch: bool) -> bool:
        """Return whether the current batch is to be predicted without an update."""
        self._rest = max(0, self._rest - new_batch)
        return self._rest > 0

    def compares(self) -> bool:
        """Count a batch; return whether the fresh method is to predict it too."""
        self._unseen += 1
        suspected = self._overturned > 0 and not self._collapsed
        if self._unseen < _EVERY and not suspected:
            return False
        self._unseen = 0
        return True

    def compare(self, adapted: Tensor, fresh: Tensor) -> bool:
        """Compare a batch's logits (B x C) with those of the fresh method; return whether a reset is due."""
        self._overturned = min(max(0.0, self._overturned + overturned(adapted, fresh)), 2 * _LIMIT)
        collapsed = self._overturned > (0 if self._collapsed else _LIMIT)
        return self._collapse(collapsed, "predictions that the fresh model is sure of are overturned")

    def watch_classes(self, predicted: Tensor) -> None:
        """Add the classes predicted for a batch, for a method without a fresh one to compare with."""
        fallen = self._classes.add(predicted)
        self._collapse(fallen, f"the last predictions fall into about {self._classes.classes:.1f} classes")

    def lost(self) -> bool:
        """Count an update that left the parameters out of range; return True, as only a reset can recover from it."""
        self.divergences += 1
        logger.warning("the parameters left the finite range: lower the learning rate; the method starts anew")
        return True

    def watch(self, loss: float, classes: int) -> bool:
        """Add the loss of an update; return whether a reset is due.

        Divergence: the loss stays above its lowest level by more than ten times that level and more than any entropy.

        Note: the level is the running mean. A slowly growing loss would pull it along, so its lowest value counts.
        """
        low = self._lowest
        if self._updates >= _PATIENCE and loss - low > max(math.log(classes), _FAR * abs(low)):
            return self._strike(f"a loss of {loss:.4g} after a level of {low:.4g}")
        self._strikes = 0
        self._updates += 1
        self._level += max(1 - _MEMORY, 1 / self._updates) * (loss - self._level)
        # The first few losses only establish the level.
        self._lowest = self._level if self._updates <= _PATIENCE else min(low, self._level)
        return False

    def _strike(self, sight: str) -> bool:
        """Count one more bad update in a row, the fifth being a divergence; return whether a reset is due."""
        self._strikes += 1
        if self._strikes != _PATIENCE:
            return False
        self.divergences += 1
        logger.warning("adaptation diverges: %s, %d times in a row; %s", sight, _PATIENCE, _TOLD[self.on_divergence])
        return self.on_divergence == "reset"

    def _collapse(self, collapsed: bool, sight: str) -> bool:
        """Count a collapse when one begins; return whether a reset is due."""
        was, self._collapsed = self._collapsed, collapsed
        if not collapsed or was:
            return False
        self.collapses += 1
        if _is_power_of_two(self.collapses):
            told = "adaptation collapses: %s; %s (%d so far)"
            logger.warning(told, sight, _TOLD[self.on_collapse], self.collapses)
        return self.on_collapse == "reset"


def _is_power_of_two(count: int) -> bool:
    """Return whether to log: only the 1st, 2nd, 4th, ... event, so that a long stream does not flood the log."""
    return count & (count - 1) == 0
