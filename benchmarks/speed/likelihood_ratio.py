"""The likelihood ratios against the loop over samples and a version by indexing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.speed.table import print_lines
from benchmarks.speed.timing import Line, interleaved
from tta_cattan.losses import hard_likelihood_ratio, soft_likelihood_ratio

GOAL = "<= 1"


def hard_by_loop(logits: Tensor) -> Tensor:
    """``-y_{c*} + log sum_{i != c*} exp(y_i)`` sample by sample."""
    values = []
    for sample in logits:
        winner = int(sample.argmax())
        values.append(torch.cat([sample[:winner], sample[winner + 1 :]]).logsumexp(0) - sample[winner])
    return torch.stack(values).mean()


def hard_by_index(logits: Tensor) -> Tensor:
    """The same, the other classes picked by a mask."""
    winner = logits.argmax(1)
    mask = torch.ones_like(logits, dtype=torch.bool)
    mask[torch.arange(len(logits)), winner] = False
    others = logits[mask].view(len(logits), -1)
    return (others.logsumexp(1) - logits[torch.arange(len(logits)), winner]).mean()


def soft_by_loop(logits: Tensor) -> Tensor:
    """``sum_c p_c (-y_c + log sum_{i != c} exp(y_i))`` sample by sample."""
    values = []
    for sample in logits:
        p = sample.softmax(0)
        ratios = torch.log1p(-p) - p.log()
        values.append((p * ratios).sum())
    return torch.stack(values).mean()


def measure(tiny: bool = False) -> list[Line]:
    """Time value and gradient; all versions must agree."""
    logits = torch.randn(8 if tiny else 256, 10 if tiny else 1000, generator=torch.Generator().manual_seed(0))
    lines = []
    for name, ours, peers in (
        ("hard", hard_likelihood_ratio, {"loop": hard_by_loop, "indexing": hard_by_index}),
        ("soft", soft_likelihood_ratio, {"loop": soft_by_loop}),
    ):
        sides = {"ours": _with_gradient(ours, logits)}
        for label, peer in peers.items():
            torch.testing.assert_close(ours(logits[:8]), peer(logits[:8]), rtol=1e-4, atol=1e-5)
            sides[label] = _with_gradient(peer, logits)
        rounds = interleaved(sides, rounds=1 if tiny else 9, calls=1 if tiny else 10)
        what = f"{name} likelihood ratio and gradient, {logits.shape[1]:,} classes, batch {len(logits)}"
        lines += [rounds.line(what, "ours", label, GOAL) for label in sides if label != "ours"]
    return lines


def _with_gradient(loss: Callable[[Tensor], Tensor], logits: Tensor) -> Callable[[], None]:
    def work() -> None:
        y = logits.clone().requires_grad_(True)
        loss(y).backward()

    return work


if __name__ == "__main__":
    print_lines(measure())
