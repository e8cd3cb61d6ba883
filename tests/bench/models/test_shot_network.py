"""SHOT's network on any backbone: its parts, its first weights, and all that the methods do with it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tta_cattan.alignment import fit_subspace
from tta_cattan.bench.models.zoo import check_arch, find_architecture, load_model
from tta_cattan.config import load_cfg
from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.network.layers import effective_linear, find_classifier, iterate_features
from tta_cattan.util.errors import UserError

pytest.importorskip("timm")
BACKBONES = {"torchvision/resnet18": 512, "timm/resnet10t": 512, "small_resnet": 64}


def build(backbone: str, num_classes: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return find_architecture(f"shot/{backbone}")(num_classes)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_its_parts_are_shots_on_every_backbone(backbone):
    check_arch(f"shot/{backbone}", None)
    net = build(backbone).eval()
    assert (net.bottleneck.in_features, net.bottleneck.out_features) == (BACKBONES[backbone], 256)
    assert find_classifier(net, num_classes=4) == "fc" and net.fc.in_features == 256
    x = torch.rand(3, 3, 64, 64)
    with torch.no_grad():
        z = net.bn(net.bottleneck(net.backbone(x)))
        direction, length = net.fc.parametrizations.weight.original1, net.fc.parametrizations.weight.original0
        weight = length * direction / direction.norm(dim=1, keepdim=True)
        torch.testing.assert_close(net(x), z @ weight.T + net.fc.bias)
        torch.testing.assert_close(effective_linear(net.fc)[0], weight)
    features = next(iterate_features(net, "fc", [x]))
    torch.testing.assert_close(features, z)


@pytest.mark.parametrize("name", ["source", "norm", "tent", "tent_plus", "shot", "ip", "cattan"])
def test_every_method_adapts_copies_and_folds_it(name):
    net = build("small_resnet").eval().requires_grad_(False)
    torch.manual_seed(1)
    images = torch.rand(24, 3, 32, 32)
    options = {}
    if name == "cattan":
        options = {"source_subspace": fit_subspace(torch.cat(list(iterate_features(net, "fc", [images])))), "d": 8}
    method = ADAPTATION_REGISTRY.get(name)(copy.deepcopy(net), **options)
    batches = [(torch.arange(12), images[:12]), (torch.arange(12, 24), images[12:])]
    method.prepare(batches)
    method.start_epoch(batches)
    for indices, x in batches:
        method(x, indices)
    torch.testing.assert_close(copy.deepcopy(method).predict(images), method.predict(images))
    if name == "ip":  # its transformation cannot be folded into any architecture
        return
    plain = method.fold()
    copy.deepcopy(net).load_state_dict(plain.state_dict(), strict=True)
    torch.testing.assert_close(plain(images[:1]), plain(images)[:1], atol=1e-5, rtol=1e-4)


def test_a_backbone_takes_its_weights_from_a_whole_networks_file(tmp_path):
    import torchvision

    torch.manual_seed(3)
    donor = torchvision.models.resnet18(num_classes=1000)
    torch.save(donor.state_dict(), tmp_path / "resnet18.pt")
    architecture, net = find_architecture("shot/torchvision/resnet18"), build("torchvision/resnet18")
    architecture.initialise(net, str(tmp_path / "resnet18.pt"))
    ours = net.backbone.model.state_dict()
    theirs = {name: value for name, value in donor.state_dict().items() if not name.startswith("fc.")}
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    other = build("torchvision/resnet34")
    with pytest.raises(UserError, match="is of another architecture"):
        find_architecture("shot/torchvision/resnet34").initialise(other, str(tmp_path / "resnet18.pt"))


def test_pretrained_weights_are_the_librarys_and_only_where_they_are_asked_for(monkeypatch):
    import torchvision

    asked = []
    torch.manual_seed(4)
    donor = torchvision.models.resnet18()
    real = torchvision.models.get_model

    def get_model(name, weights=None, **options):
        asked.append(weights)
        return real(name, weights=None, **options) if weights is None else copy.deepcopy(donor)

    monkeypatch.setattr(torchvision.models, "get_model", get_model)
    net = build("torchvision/resnet18")
    assert asked == [None]
    find_architecture("shot/torchvision/resnet18").initialise(net, "pretrained")
    assert asked[1] is not None and torch.equal(net.backbone.model.conv1.weight, donor.conv1.weight)


def test_a_trained_network_loads_by_name_and_path(tmp_path):
    net = build("small_resnet")
    torch.save(net.state_dict(), tmp_path / "net.pt")
    cfg = load_cfg(
        None, ["MODEL.ARCH", "shot/small_resnet", "MODEL.CKPT_PATH", str(tmp_path / "net.pt"), "DEVICE", "cpu"]
    )
    loaded = load_model(cfg, 4)
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(loaded.model(x), net.eval()(x))
    with pytest.raises(UserError, match="torchvision has no model 'resnet5'"):
        check_arch("shot/torchvision/resnet5", None)
