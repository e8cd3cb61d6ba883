"""A few model families under the contract that reliability/families.py holds them all to."""

from __future__ import annotations

import pytest
from torch import nn

from reliability.families import CLASSES, check, find_input, outcome, timm_members, torchvision_members
from tta_cattan.methods import Tent

pytest.importorskip("timm")
MEMBERS = dict((*torchvision_members(), *timm_members()))


FEW = ["torchvision/shufflenet_v2_x0_5", "torchvision/mnasnet0_5", "timm/vision_transformer", "timm/efficientnet"]


@pytest.mark.parametrize("family", FEW)
def test_a_family_keeps_the_contract(family):
    assert outcome(MEMBERS[family]) == ""


def test_a_family_that_cannot_be_adapted_gets_its_reason():
    assert outcome(MEMBERS["torchvision/squeezenet1_1"]).startswith("SqueezeNet has no normalisation layer with affine")


def test_the_contract_can_fail():
    class Drifts(Tent):
        def reset(self):
            pass

    features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = nn.Sequential(features, nn.Linear(4, CLASSES))
    assert "reset does not restore" in check(Drifts(net), find_input(net))
