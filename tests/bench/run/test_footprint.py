"""The bytes a method keeps, counted from the shapes of what it must keep."""

from __future__ import annotations

import torch
from small_networks import build, images, network
from torch import nn

from tta_cattan.bench.run.cell import stored_bytes, tent_bytes
from tta_cattan.methods import Tent
from tta_cattan.methods.source import Source


def size(*tensors: torch.Tensor | None) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def test_tent_keeps_the_model_and_what_reset_restores():
    model = network()
    affine = [p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in (*m.parameters(), *m.buffers())]
    expected = size(*model.state_dict().values()) + size(*affine)
    assert tent_bytes(model) == expected
    adapted = Tent(network())
    adapted(images(8, 0))
    assert stored_bytes(adapted) == expected, "neither the optimiser's moments nor gradients count"


def test_a_model_without_normalisation_is_itself():
    model = nn.Linear(4, 3)
    assert tent_bytes(model) == size(*model.state_dict().values()) == stored_bytes(Source(nn.Linear(4, 3)))


def test_ip_keeps_its_transformation_twice_and_the_mean_prediction():
    method = build("ip")
    method(images(8, 0))
    transform = size(*method.model.transform.state_dict().values())
    assert stored_bytes(method) - tent_bytes(network()) == 2 * transform + size(method.target.balance.mean)


def test_cattan_keeps_the_bases_and_phi():
    method = build("cattan")
    method.prepare([(torch.arange(24), images(24, 0))])
    head = method.aligned
    kept = size(head.phi, head.target_basis, head.readout, head.offset, head.optimum)
    kept += sum(size(s.basis, s.eigenvalues, s.mean) for s in (method.source, method.target.known))
    assert stored_bytes(method) - tent_bytes(network()) == kept
