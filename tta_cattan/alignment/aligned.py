"""Subspace alignment: the closed form, its cost, and layers that pass their features through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tta_cattan.network.layers import Call, channel_place, effective_linear, frozen_copy, with_weight

REDUCTIONS = ("sum", "mean")
_ALIGNMENT = ("phi", "target_basis", "target_mean", "readout", "offset", "optimum")


def closed_form(target_basis: Tensor, source_basis: Tensor) -> Tensor:
    """Return ``Phi* = W_t^T W_s``, the minimiser of ``||W_t Phi - W_s||_F^2`` (d_t x d_s)."""
    return target_basis.T @ source_basis


def alignment_cost(phi: Tensor, optimum: Tensor, dim: int, reduction: str = "sum") -> Tensor:
    """Return ``||W_t Phi - W_s||_F^2 = ||Phi - Phi*||^2 + d_s - ||Phi*||^2`` in O(d^2), for orthonormal bases.

    ``reduction="mean"`` divides by the D x d_s entries of ``W_s`` (the authors' code).
    """
    fixed = optimum.detach().flatten()
    cost = _SquaredDistance.apply(phi, optimum) + (optimum.shape[1] - torch.dot(fixed, fixed))
    return cost / (dim * optimum.shape[1]) if reduction == "mean" else cost


class _SquaredDistance(torch.autograd.Function):
    """``||Phi - Phi*||^2``, whose gradient ``2 (Phi - Phi*)`` reuses the difference computed for the value."""

    @staticmethod
    def forward(ctx: Any, phi: Tensor, optimum: Tensor) -> Tensor:
        difference = phi - optimum
        ctx.save_for_backward(difference)
        return torch.dot(difference.flatten(), difference.flatten())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (difference,) = ctx.saved_tensors
        return difference * (2 * gradient), None


def project_classifier(
    weight: Tensor, bias: Tensor | None, source_basis: Tensor, source_mean: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the classifier in the source subspace: ``W_s^T H^T`` (d_s x C) and the bias ``b + m_s H^T``."""
    if source_mean is not None:
        shift = source_mean @ weight.T
        bias = shift if bias is None else bias + shift
    return source_basis.T @ weight.T, bias


def fold_alignment(
    target_basis: Tensor, phi: Tensor, readout: Tensor, bias: Tensor | None, target_mean: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the weight (K x D) and bias (K) of the single linear layer that equals the alignment and its readout.

    ``((Z - m_t) W_t Phi) R + b = Z F + b - m_t F`` with ``F = W_t Phi R``; for a classifier ``R = W_s^T H^T``.
    """
    folded = target_basis @ (phi @ readout)
    if target_mean is not None:
        shift = target_mean @ folded
        bias = -shift if bias is None else bias - shift
    return folded.T.contiguous(), bias


class Aligned(nn.Module):
    """Passes features ``z`` through the alignment: ``((z - m_t) W_t) Phi R + r`` with a fixed readout ``R``.

    The readout of a layer is ``R = W_s^T, r = m_s``; that of a linear classifier ``h(z) = z H^T + b`` is
    ``R = W_s^T H^T, r = b + m_s H^T``, so that no D x D product is ever formed. Before ``align`` and after ``clear``
    the features are not aligned.

    It is a module, not a hook, so that ``deepcopy``, ``state_dict`` and ``load_state_dict(strict=True)`` include the
    alignment, whatever its dimensions.
    """

    def __init__(self, in_features: int, like: Tensor) -> None:
        """Create the layer without an alignment; ``in_features`` is D, ``like`` sets the device and precision."""
        super().__init__()
        self.in_features = in_features
        self._bypassed = False
        self.register_buffer("like", like.detach().new_empty(0), persistent=False)
        self.register_parameter("phi", None)
        for name in _ALIGNMENT[1:]:
            self.register_buffer(name, None)
        self._calls: list[Call] | None = None
        self._before: Callable[[Tensor], None] | None = None

    def features(self, x: Tensor) -> Tensor:
        """Return the features of an input, with the channels last."""
        return x

    def restored(self, aligned: Tensor) -> Tensor:
        """Move the channels of aligned features to where the rest of the network expects them."""
        return aligned

    def plain(self, features: Tensor) -> Tensor:
        """Return the output for ``features`` without the alignment."""
        raise NotImplementedError

    def plain_map(self) -> tuple[Tensor, Tensor | None]:
        """Return the weight (K x D) and bias of ``plain``."""
        raise NotImplementedError

    def read_out(self, source_basis: Tensor, source_mean: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the readout, ``R`` (d_s x K) and ``r`` (K)."""
        raise NotImplementedError

    @torch.no_grad()
    def align(
        self,
        target_basis: Tensor,
        source_basis: Tensor,
        target_mean: Tensor | None = None,
        source_mean: Tensor | None = None,
    ) -> None:
        """Set the alignment to its closed form ``Phi* = W_t^T W_s``; ``phi`` becomes a new parameter."""
        target_basis, source_basis = target_basis.to(self.like), source_basis.to(self.like)
        means = [None if mean is None else mean.to(self.like) for mean in (target_mean, source_mean)]
        self.target_basis, self.target_mean = target_basis.clone(), means[0]
        readout, offset = self.read_out(source_basis, means[1])
        # Clones: otherwise torch would register a classifier's bias a second time, as a parameter of this name.
        self.readout, self.offset = readout.clone(), None if offset is None else offset.clone()
        self.optimum = closed_form(target_basis, source_basis)
        self.phi = nn.Parameter(self.optimum.clone())

    def clear(self) -> None:
        """Remove the alignment."""
        for name in _ALIGNMENT:
            setattr(self, name, None)

    @property
    def enabled(self) -> bool:
        """Whether features pass through the alignment."""
        return self.phi is not None and not self._bypassed

    @torch.no_grad()
    def move_target(self, target_basis: Tensor, source_basis: Tensor, target_mean: Tensor | None = None) -> None:
        """Replace ``W_t`` with a basis of the same size: ``Phi <- Phi*' + W_t'^T W_t (Phi - Phi*)``.

        Note: only the learnt difference is carried over; carrying ``Phi`` itself would lose part of ``W_s`` each time.
        """
        target_basis, source_basis = target_basis.to(self.like), source_basis.to(self.like)
        learnt = target_basis.T @ (self.target_basis @ (self.phi - self.optimum))
        self.target_basis.copy_(target_basis)
        self.optimum.copy_(closed_form(target_basis, source_basis))
        self.phi.copy_(self.optimum + learnt)
        if target_mean is not None and self.target_mean is not None:
            self.target_mean.copy_(target_mean)

    def cost(self, reduction: str = "sum") -> Tensor:
        """Return the alignment cost ``||W_t Phi - W_s||_F^2``."""
        return alignment_cost(self.phi, self.optimum, len(self.target_basis), reduction)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for the aligned features, or the plain ones if the alignment is off."""
        features = self.features(x)
        if self._before is not None:
            before, self._before = self._before, None
            before(features)
        result = self.restored(self._aligned(features) if self.enabled else self.plain(features))
        if self._calls is not None:
            self._calls.append(Call(features, result))
        return result

    def _aligned(self, features: Tensor) -> Tensor:
        if self.target_mean is not None:
            features = features - self.target_mean
        result = features @ self.target_basis @ self.phi @ self.readout
        return result if self.offset is None else result + self.offset

    @contextmanager
    def observed(self, before: Callable[[Tensor], None] | None = None) -> Iterator[list[Call]]:
        """Record the calls inside the block; ``before`` receives the first features before they are aligned."""
        calls: list[Call] = []
        self._calls, self._before = calls, before
        try:
            yield calls
        finally:
            self._calls = self._before = None

    @contextmanager
    def bypassed(self) -> Iterator[None]:
        """Switch the alignment off inside the block."""
        self._bypassed = True
        try:
            yield
        finally:
            self._bypassed = False

    @torch.no_grad()
    def linear_map(self) -> tuple[Tensor, Tensor | None]:
        """Return the weight (K x D) and bias of the linear map from features to outputs."""
        if not self.enabled:
            return self.plain_map()
        return fold_alignment(self.target_basis, self.phi, self.readout, self.offset, self.target_mean)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Resize the alignment to the dimensions in the state dict before torch copies it in."""
        for name in _ALIGNMENT:
            new, old = state_dict.get(prefix + name), getattr(self, name)
            if new is None:
                setattr(self, name, None)
            elif old is None or old.shape != new.shape:
                room = torch.empty_like(new, device=self.like.device)
                if name != "phi":
                    setattr(self, name, room)
                elif old is None:
                    self.phi = nn.Parameter(room)
                else:
                    old.data = room  # keep the parameter object: an optimiser may hold it
        super()._load_from_state_dict(state_dict, prefix, *args)


class AlignedHead(Aligned):
    """A frozen linear classifier whose features pass through the alignment."""

    def __init__(self, linear: nn.Linear) -> None:
        weight, bias = effective_linear(linear)
        super().__init__(weight.shape[1], weight)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._linear = [frozen_copy(linear)]  # in a list, so no submodule; ``fold`` copies it

    def plain(self, features: Tensor) -> Tensor:
        """Return the source classifier's logits."""
        return F.linear(features, self.weight, self.bias)

    def read_out(self, source_basis: Tensor, source_mean: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return ``W_s^T H^T`` and ``b + m_s H^T``."""
        return project_classifier(self.weight, self.bias, source_basis, source_mean)

    def plain_map(self) -> tuple[Tensor, Tensor | None]:
        """Return the source classifier's weight and bias."""
        return self.weight, self.bias

    @torch.no_grad()
    def fold(self) -> nn.Module:
        """Return a copy of the classifier with the alignment folded in."""
        return with_weight(self._linear[0], *self.linear_map())


class AlignedLayer(Aligned):
    """A layer whose output is aligned: rows (n x D), tokens (n x N x D) or feature maps (n x D x H x W).

    Note: in a feature map, channels are the features and positions the samples. In a 3-d output, the channels are the
    last dimension if it has D entries, otherwise the second.
    """

    def __init__(self, inner: nn.Module, dim: int, like: Tensor) -> None:
        super().__init__(dim, like)
        self.inner = inner
        self._place = -1

    def features(self, x: Tensor) -> Tensor:
        """Return the layer's output with the channels last."""
        z = self.inner(x)
        self._place = channel_place(z, self.in_features)
        return z.movedim(self._place, -1)

    def restored(self, aligned: Tensor) -> Tensor:
        """Move the channels back to where the layer has them."""
        return aligned.movedim(-1, self._place)

    def plain(self, features: Tensor) -> Tensor:
        """Return the features themselves."""
        return features

    def read_out(self, source_basis: Tensor, source_mean: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return ``W_s^T`` and ``m_s``."""
        return source_basis.T, source_mean

    def plain_map(self) -> tuple[Tensor, Tensor | None]:
        """Return the identity."""
        return torch.eye(self.in_features, dtype=self.like.dtype, device=self.like.device), None
