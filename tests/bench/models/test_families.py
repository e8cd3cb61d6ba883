"""A few model families under the contract that benchmarks/faults/families.py holds them all to."""

from __future__ import annotations

import pytest
from torch import nn

from benchmarks.faults.families import CLASSES, Outcome, check, find_input, members, outcome, table
from tta_cattan.methods import Tent

pytest.importorskip("timm")
MEMBERS = members()


FEW = ["torchvision/shufflenet_v2_x0_5", "torchvision/mnasnet0_5", "timm/vision_transformer", "timm/efficientnet"]


@pytest.mark.parametrize("family", FEW)
def test_a_family_keeps_the_contract(family):
    assert outcome(MEMBERS[family]).words == "passed"


def test_a_family_that_cannot_be_adapted_gets_its_reason():
    reason = outcome(MEMBERS["torchvision/squeezenet1_1"]).reason
    assert reason.startswith("SqueezeNet has no normalisation layer with affine")


def test_the_contract_can_fail():
    class Drifts(Tent):
        def reset(self):
            pass

    features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = nn.Sequential(features, nn.Linear(4, CLASSES))
    assert "reset does not restore" in check(Drifts(net), find_input(net))


def test_the_page_counts_the_families_of_each_library():
    found = {"timm/a": Outcome("", "a_small", 12345, 64), "timm/b": Outcome("too large"), "torchvision/c": Outcome("")}
    page = table(found)
    assert "1 of torchvision's 1, 1 of timm's 2 families pass" in page.replace("\n", " ")
    assert "| timm/a | a_small | 12,345 | 64 | passed |" in page and "| timm/b |  |  |  | too large |" in page
