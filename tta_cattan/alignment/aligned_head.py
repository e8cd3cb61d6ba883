"""The classifier with the alignment layer in front of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_cattan.alignment import alignment_cost, closed_form, fold_alignment, project_classifier
from tta_cattan.network.classifier import effective_linear

_ALIGNMENT = ("phi", "target_basis", "target_mean", "projected", "offset", "optimum")


class AlignedHead(nn.Module):
    """A frozen linear classifier ``h`` that sees its features through the alignment ``A_Phi``.

    ``forward(Z) = ((Z - m_t) W_t) Phi (W_s^T H^T) + b'``: the D x D product is never formed. While ``enabled`` is False
    it is the plain classifier. With ``residual`` the classifier itself stays and only what ``Phi`` has learnt is added,
    ``forward(Z) = h(Z) + (Z W_t) (Phi - Phi*) (W_s^T H^T)``: nothing of a feature is lost.

    It is a module, not a hook, so that ``deepcopy``, ``state_dict`` and ``load_state_dict(strict=True)`` carry the
    alignment along, whatever its dimensions.
    """

    def __init__(self, linear: nn.Linear, residual: bool = False) -> None:
        super().__init__()
        self.residual = residual
        weight, bias = effective_linear(linear)
        self.weight = nn.Parameter(weight.clone(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.clone(), requires_grad=False)
        self.register_parameter("phi", None)
        for name in _ALIGNMENT[1:]:
            self.register_buffer(name, None)
        self.enabled = False

    @property
    def in_features(self) -> int:
        """D, the number of features."""
        return self.weight.shape[1]

    @torch.no_grad()
    def align(
        self,
        target_basis: Tensor,
        source_basis: Tensor,
        target_mean: Tensor | None = None,
        source_mean: Tensor | None = None,
        enabled: bool = True,
    ) -> None:
        """Set the alignment to its closed form ``Phi* = W_t^T W_s``; ``phi`` becomes a new parameter."""
        target_basis, source_basis = target_basis.to(self.weight), source_basis.to(self.weight)
        means = [None if mean is None else mean.to(self.weight) for mean in (target_mean, source_mean)]
        self.target_basis, self.target_mean = target_basis.clone(), means[0]
        self.projected, offset = project_classifier(self.weight, self.bias, source_basis, means[1])
        # A clone: torch would register the bias itself a second time, as a parameter of this name.
        self.offset = None if offset is None else offset.clone()
        self.optimum = closed_form(target_basis, source_basis)
        self.phi = nn.Parameter(self.optimum.clone())
        self.enabled = enabled

    @torch.no_grad()
    def move_target(self, target_basis: Tensor, source_basis: Tensor, target_mean: Tensor | None = None) -> None:
        """Exchange ``W_t`` for a basis of the same size: ``Phi <- Phi*' + W_t'^T W_t (Phi - Phi*)``.

        Note: only what was learnt is carried over; carrying ``Phi`` itself would lose a part of ``W_s`` at every move.
        """
        target_basis, source_basis = target_basis.to(self.weight), source_basis.to(self.weight)
        learnt = target_basis.T @ (self.target_basis @ (self.phi - self.optimum))
        self.target_basis.copy_(target_basis)
        self.optimum.copy_(closed_form(target_basis, source_basis))
        self.phi.copy_(self.optimum + learnt)
        if target_mean is not None and self.target_mean is not None:
            self.target_mean.copy_(target_mean)

    def cost(self, reduction: str = "sum") -> Tensor:
        """Return the alignment cost ``||W_t Phi - W_s||_F^2``."""
        return alignment_cost(self.phi, self.optimum, self.in_features, reduction)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits of the aligned features."""
        if not self.enabled:
            return F.linear(features, self.weight, self.bias)
        if self.residual:
            correction = features @ self.target_basis @ ((self.phi - self.optimum) @ self.projected)
            return F.linear(features, self.weight, self.bias) + correction
        if self.target_mean is not None:
            features = features - self.target_mean
        logits = features @ self.target_basis @ self.phi @ self.projected
        return logits if self.offset is None else logits + self.offset

    @torch.no_grad()
    def fold(self) -> nn.Linear:
        """Return one plain linear layer with the same function."""
        weight, bias = self.weight, self.bias
        if self.enabled and self.residual:
            weight = weight + (self.target_basis @ ((self.phi - self.optimum) @ self.projected)).T
        elif self.enabled:
            weight, bias = fold_alignment(self.target_basis, self.phi, self.projected, self.offset, self.target_mean)
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device=weight.device, dtype=weight.dtype)
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
        return linear

    def get_extra_state(self) -> Tensor:
        """Carry ``enabled`` in the state dict, as a tensor so that the dict can go into any file."""
        return torch.tensor(self.enabled)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore ``enabled``."""
        self.enabled = bool(state)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Make room for an alignment of other dimensions than the present one before torch copies it in."""
        for name in _ALIGNMENT:
            new, old = state_dict.get(prefix + name), getattr(self, name)
            if new is None:
                setattr(self, name, None)
            elif old is None or old.shape != new.shape:
                room = torch.empty_like(new, device=self.weight.device)
                if name != "phi":
                    setattr(self, name, room)
                elif old is None:
                    self.phi = nn.Parameter(room)
                else:
                    old.data = room  # the same parameter still: an optimiser may hold it
        super()._load_from_state_dict(state_dict, prefix, *args)
