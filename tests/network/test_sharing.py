"""A copy for adaptation holds only what adaptation changes, and nothing that it does reaches the source model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tta_cattan.methods.base import AdaptationMethod
from tta_cattan.methods.cattan import CATTAn
from tta_cattan.methods.tent import Tent
from tta_cattan.network.ownership import copy_for_adaptation, own_free_parameters
from tta_cattan.util.files import sha256_tensors


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, 4)).eval().requires_grad_(False)


class Everything(AdaptationMethod):
    """A method that somebody might register: it updates all weights."""

    def configure_model(self, model: nn.Module) -> nn.Module:
        return model.eval().requires_grad_(True)

    def collect_params(self) -> tuple[list[nn.Parameter], list[str]]:
        names, params = zip(*self.model.named_parameters(), strict=True)
        return list(params), list(names)

    def loss(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.square().mean()


def test_only_the_normalisation_layers_are_copied():
    model = network()
    mine = copy_for_adaptation(model)
    same = [a.data_ptr() == b.data_ptr() for a, b in zip(model.parameters(), mine.parameters(), strict=True)]
    assert same == [True, True, False, False, True, True]
    buffers = zip(model.buffers(), mine.buffers(), strict=True)
    assert not any(a.data_ptr() == b.data_ptr() for a, b in buffers)
    x = torch.rand(5, 3, 8, 8)
    assert torch.equal(mine(x), model(x))


@pytest.mark.parametrize("make", [Tent, CATTAn, Everything])
@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_the_source_model_stays_as_it_is_and_the_result_is_that_of_a_whole_copy(make, statistics):
    results = []
    for copied in (True, False):
        model = network()
        before = sha256_tensors(model.state_dict())
        method = make(copy_for_adaptation(model) if copied else network(), statistics=statistics)
        own_free_parameters(method, model)
        method.begin_updates()
        for _ in range(3):
            x = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
            logits = method(x)
        results.append(logits)
        assert sha256_tensors(model.state_dict()) == before
        assert not any(param.requires_grad for param in model.parameters())
    assert torch.equal(*results)


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    mine = copy_for_adaptation(model)
    assert mine[0].weight is mine[2].weight and mine[0].weight is not model[0].weight
