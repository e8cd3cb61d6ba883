"""Predictions that take into account where the target's classes lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FITTED = ("weight", "bias", "temperature")


class TargetClasses(nn.Module):
    """``t (y + z A^T + a)`` of logits ``y`` and features ``z``; before ``set``, and after ``clear``, the logits alone.

    Note: the state dict holds ``A``, ``a`` and ``t`` once they are set, and may be loaded in either case.
    """

    def __init__(self) -> None:
        super().__init__()
        for name in _FITTED:
            self.register_buffer(name, None)

    def set(self, basis: Tensor, weight: Tensor, offset: Tensor, temperature: float) -> None:
        """Take what ``fit_class_structure`` found in the coordinates ``z basis``."""
        self.weight, self.bias = (basis @ weight).T.contiguous(), offset
        self.temperature = offset.new_tensor(temperature)

    def clear(self) -> None:
        """Drop it."""
        self.weight = self.bias = self.temperature = None

    def forward(self, logits: Tensor, features: Tensor) -> Tensor:
        """Return the logits by both opinions, the network's and that of the classes."""
        if self.weight is None:
            return logits
        return self.temperature * (logits + F.linear(features.to(self.weight), self.weight, self.bias))

    @torch.no_grad()
    def fold_into(self, linear: nn.Linear) -> nn.Linear:
        """Return the one linear layer that equals ``linear`` and this after it."""
        if self.weight is None:
            return linear
        like = linear.weight
        folded = nn.Linear(like.shape[1], like.shape[0], device=like.device, dtype=like.dtype)
        folded.weight.copy_(self.temperature * (like + self.weight))
        bias = self.bias if linear.bias is None else self.bias + linear.bias
        folded.bias.copy_(self.temperature * bias)
        return folded.requires_grad_(False).eval()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Make room for what the state holds, or drop what it does not hold, before torch copies it in."""
        for name in _FITTED:
            new = state_dict.get(prefix + name)
            setattr(self, name, None if new is None else torch.empty_like(new))
        super()._load_from_state_dict(state_dict, prefix, *args)
