"""The identities of the method against the literal formulas, values and gradients."""

from __future__ import annotations

import pytest
import torch

from tta_cattan.alignment import alignment_cost, closed_form, fold_alignment, project_classifier


def orthonormal(dim: int, d: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(dim, d, generator=generator, dtype=torch.float64))[0]


@pytest.fixture(params=[(12, 12), (12, 5)], ids=["square", "rectangular"])
def bases(request):
    d_target, d_source = request.param
    return orthonormal(30, d_target, 0), orthonormal(30, d_source, 1)


def test_closed_form_is_the_least_squares_solution(bases):
    target, source = bases
    torch.testing.assert_close(closed_form(target, source), torch.linalg.lstsq(target, source).solution)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_cost_and_gradient_equal_the_literal_norm(bases, reduction):
    target, source = bases
    optimum = closed_form(target, source)
    phi = (optimum + 0.1 * torch.randn_like(optimum)).requires_grad_()
    error = (target @ phi - source).square()
    literal = error.sum() if reduction == "sum" else error.mean()
    ours = alignment_cost(phi, optimum, dim=30, reduction=reduction)
    torch.testing.assert_close(ours, literal)
    torch.testing.assert_close(torch.autograd.grad(ours, phi)[0], torch.autograd.grad(literal, phi)[0])


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_folded_layer_equals_the_literal_composition(bases, shifted, with_bias):
    target, source = bases
    phi = closed_form(target, source) + 0.1
    weight, z = torch.randn(7, 30, dtype=torch.float64), torch.randn(9, 30, dtype=torch.float64)
    bias = torch.randn(7, dtype=torch.float64) if with_bias else None
    m_t, m_s = (torch.randn(2, 30, dtype=torch.float64)) if shifted else (None, None)
    aligned = (z - m_t if shifted else z) @ target @ phi @ source.T + (m_s if shifted else 0)
    literal = torch.nn.functional.linear(aligned, weight, bias)
    projected, offset = project_classifier(weight, bias, source, m_s)
    folded = fold_alignment(target, phi, projected, offset, m_t)
    torch.testing.assert_close(torch.nn.functional.linear(z, *folded), literal)
