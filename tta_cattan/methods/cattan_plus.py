"""CATTAn+: CATTAn-F and, given a whole target set, CATTAn's updates and the target's classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tta_cattan.alignment import change_weight
from tta_cattan.losses import hard_likelihood_ratio
from tta_cattan.methods.base import ADAPTATION_REGISTRY, AdaptationMethod, Batches
from tta_cattan.methods.cattan_forward import CATTAnForward, ForwardTarget
from tta_cattan.methods.target import RunningBalance
from tta_cattan.network.normalization import affine_parameters
from tta_cattan.util.keys import at_least, key


@ADAPTATION_REGISTRY.register("cattan_plus")
class CATTAnPlus(CATTAnForward):
    """CATTAn-F; offline it also updates parameters and then, with ``classes``, predicts by the target's classes too.

    ``prepare`` freezes the moments of the whole target. The epochs then minimise CATTAn's loss with ``W_t = W_s``,
    ``lambda_lr L_lr + lambda_align ||Phi - I||^2 + lambda_cb KL(m || uniform)`` with the running mean prediction ``m``,
    over the affines and, if ``layer`` is set, ``Phi`` of ``z -> m_s + (z - m_s) W_s Phi W_s^T``. The learning rate is
    ``lr c^2 / (c^2 + class_change^2)``, where ``c`` is the fraction of the source model's predictions that the
    alignment changed. In a stream, without ``prepare``, no parameter changes.
    """

    title = "CATTAn+"
    node = "CATTAN_PLUS"
    adapts = True
    classes = True
    lr = 1e-4

    lambda_lr: float = key(0.025, "offline: weight of the confidence loss", at_least(0), origin="paper")
    lambda_cb: float = key(1.0, "offline: weight of the class balance", at_least(0), origin="paper")
    lambda_align: float = key(0.01, "offline: weight of the alignment cost; the paper's is 1", at_least(0))

    @property
    def learns(self) -> bool:
        """Whether parameters are updated: ``prepare`` has frozen the moments of the whole target."""
        return isinstance(self.target.known, ForwardTarget)

    def collect_params(self) -> tuple[list[nn.Parameter], list[str]]:
        """Return the affines and ``Phi`` if parameters are updated, otherwise nothing."""
        if not self.learns:
            return [], []
        params, names = affine_parameters(self.model)
        if self.subspace is None:
            return params, names
        if self.target.phi is None:
            basis = self.subspace[0][:, : self.d]
            self.target.phi = torch.eye(basis.shape[1], dtype=basis.dtype, device=basis.device)
        return [*params, self.target.phi.requires_grad_()], [*names, f"{self.layer}.phi"]

    @torch.no_grad()
    def prepare(self, batches: Batches) -> None:
        """Compute the moments of the whole target and freeze them for the updates."""
        changed = []
        with self.whole_target(batches) as inputs:
            for x in inputs:
                with self.as_source():
                    before = self.infer(x, adapting=False).argmax(1)
                changed.append(self.infer(x, adapting=True).argmax(1) != before)
        if self.target.domain is not None:
            self.begin_target(replace(self.target, changed=torch.cat(changed).double().mean().item()))

    def begin_target(self, known: Any = None) -> None:
        """Start from scratch, or from where ``prepare`` ended."""
        super().begin_target(known)
        if isinstance(known, ForwardTarget):
            self.target = replace(known, known=known, balance=RunningBalance())
            self.begin_updates()
            for group in self.optimizer.param_groups:
                group["lr"] *= change_weight(known.changed or 0.0, self.class_change)

    def forward_and_adapt(self, x: Tensor, indices: Tensor | None = None, again: bool = False) -> Tensor:
        """Update the parameters once on a batch after ``prepare`` froze the moments; otherwise adapt as CATTAn-F."""
        if not self.learns or self._pauses:
            return super().forward_and_adapt(x, indices, again)
        logits = AdaptationMethod.forward_and_adapt(self, x, indices, again)
        self._merged.clear()  # fused optimisers change parameters without bumping their version
        return logits

    @contextmanager
    def at_start(self) -> Iterator[None]:
        """Use the source's parameters and no ``Phi`` inside the block."""
        phi, self.target.phi = self.target.phi, None
        try:
            with super().at_start():
                yield
        finally:
            self.target.phi = phi

    def infer(self, x: Tensor, adapting: bool) -> Tensor:
        """Run the aligned model; the moments of a whole target stay frozen."""
        return super().infer(x, adapting and not self.learns)

    def loss(self, logits: Tensor) -> Tensor:
        """Return ``L = lambda_lr L_lr + lambda_cb KL(m || uniform) + lambda_align ||Phi - I||^2``."""
        balance = self.target.balance(logits, self.new_batch)
        loss = self.lambda_lr * hard_likelihood_ratio(logits) + self.lambda_cb * balance
        phi = self.target.phi
        return loss if phi is None else loss + self.lambda_align * (phi - torch.eye(len(phi)).to(phi)).square().sum()
