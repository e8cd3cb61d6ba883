"""Subspace alignment: the closed form, its cost, and the classifier seen through it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

REDUCTIONS = ("sum", "mean")


def closed_form(target_basis: Tensor, source_basis: Tensor) -> Tensor:
    """``Phi* = W_t^T W_s``, the minimiser of ``||W_t Phi - W_s||_F^2`` (d_t x d_s)."""
    return target_basis.T @ source_basis


def alignment_cost(phi: Tensor, optimum: Tensor, dim: int, reduction: str = "sum") -> Tensor:
    """``||W_t Phi - W_s||_F^2 = ||Phi - Phi*||^2 + d_s - ||Phi*||^2`` in O(d^2), orthonormal bases assumed.

    ``reduction="mean"`` divides by the D x d_s entries of ``W_s`` (the authors' code).
    """
    fixed = optimum.detach().flatten()
    cost = _SquaredDistance.apply(phi, optimum) + (optimum.shape[1] - torch.dot(fixed, fixed))
    return cost / (dim * optimum.shape[1]) if reduction == "mean" else cost


class _SquaredDistance(torch.autograd.Function):
    """``||Phi - Phi*||^2``, whose gradient ``2 (Phi - Phi*)`` is one pass over the difference that the value needs."""

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
    """Return ``W_s^T H^T`` (d_s x C) and the bias ``b + m_s H^T``: the classifier in the source subspace."""
    if source_mean is not None:
        shift = source_mean @ weight.T
        bias = shift if bias is None else bias + shift
    return source_basis.T @ weight.T, bias


def fold_alignment(
    target_basis: Tensor, phi: Tensor, projected: Tensor, bias: Tensor | None, target_mean: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the weight (C x D) and bias (C) of the one linear layer that equals alignment and classifier.

    ``h((Z - m_t) W_t Phi W_s^T + m_s) = Z F + b' - m_t F`` with ``F = W_t Phi W_s^T H^T``, and ``W_s^T H^T`` and ``b'``
    from ``project_classifier``.
    """
    folded = target_basis @ (phi @ projected)
    if target_mean is not None:
        shift = target_mean @ folded
        bias = -shift if bias is None else bias - shift
    return folded.T.contiguous(), bias
