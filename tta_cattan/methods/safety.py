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

# Adaptation has collapsed where the entropy of its predicted classes fell to this share of the highest it had.
_COLLAPSED = 0.25
# It diverges where the loss stays above its level by this many times its size, for so many updates.
_FAR = 10.0
_PATIENCE = 5
_MEMORY = 0.9  # share of the past in the loss's level


def all_finite(tensor: Tensor) -> bool:
    """Tell whether there is no NaN and no Inf: the sum shows it in one pass, unless finite numbers overflow in it."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def in_range(tensors: Sequence[Tensor]) -> bool:
    """Tell whether ``sum ||t||^2`` is finite in float32: no NaN, no Inf, nothing whose square Adam could not hold."""
    norms = torch._foreach_norm([tensor.detach().float() for tensor in tensors])  # as in torch's clip_grad_norm_
    return math.isfinite(torch.stack([norm.to(norms[0].device) for norm in norms]).square().sum().item())


@stateful
class Safety:
    """What went wrong while a method adapted: counted for the result, told in the log, answered by the keys.

    ``report`` leaves the method as it is, ``reset`` says that it should go back to its start. Counts survive a reset.
    """

    def __init__(self, on_collapse: str = "report", on_divergence: str = "report", window: int = 256) -> None:
        self.on_collapse, self.on_divergence, self.window = on_collapse, on_divergence, window
        self.skipped_steps = self.collapses = self.divergences = self.resets = 0
        self.restart()

    def restart(self) -> None:
        """Forget the levels that predictions and losses had: those to come are of another start."""
        self._counts: Tensor | None = None
        self._seen = 0
        self._highest = 0.0
        self._collapsed = False
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
        """Collapse: over a window, ``H = -sum_c m_c log m_c`` of the predicted classes is far below its highest."""
        n, classes = logits.shape
        if self._counts is None:
            self._counts = torch.zeros(classes, dtype=torch.long)
        self._counts = self._counts.to(logits.device)
        # Adding to places, unlike bincount, lets a GPU run on; max is faster than argmax on the CPU.
        self._counts.scatter_add_(0, logits.max(1).indices, torch.ones(n, dtype=torch.long, device=logits.device))
        first = self._seen == 0 and self._highest == 0  # before any update: the start's own predictions
        self._seen += n
        if self._seen < self.window and not first:
            return False
        share = self._counts.cpu().double() / self._counts.sum().item()  # not every device has float64
        entropy = torch.special.entr(share).sum().item()
        self._highest = max(self._highest, entropy)
        if self._seen >= self.window:
            self._counts.zero_()
            self._seen = 0
        was, self._collapsed = self._collapsed, entropy < _COLLAPSED * self._highest
        if not self._collapsed or was:
            return False
        self.collapses += 1
        logger.warning(
            "adaptation collapses: the last predictions fall into about %.1f of %d classes, after %.1f before; "
            "lower the learning rate, or mix the classes of the stream",
            math.exp(entropy), classes, math.exp(self._highest),
        )  # fmt: skip
        return self.on_collapse == "reset"
