"""The source subspace that `fit-source` writes is the one that a host finds, under its own names for the weights."""

from __future__ import annotations

import logging

import pytest
import torch
from digits_runs import overrides
from safetensors.torch import save_file
from torch import nn
from torchvision.models import resnet18

from tta_cattan import Subspace, fit_subspace
from tta_cattan.alignment.subspace import find_subspaces, sha256_weights, subspace_path
from tta_cattan.cli.main import main
from tta_cattan.config import load_cfg
from tta_cattan.host.methods import known_source


class HostWrapper(nn.Module):
    """A host's model: an input normalisation with buffers around the same network."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.register_buffer("mu", torch.zeros(1, 3, 1, 1))
        self.backbone = net

    def forward(self, x):
        return self.backbone(x - self.mu)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Return a network and the CKPT_DIR in which `fit-source` has put its subspace."""
    folder = tmp_path_factory.mktemp("fitted")
    torch.manual_seed(0)
    net = resnet18(num_classes=10).eval()
    save_file(net.state_dict(), folder / "net.safetensors")
    changes = {"MODEL.ARCH": "torchvision/resnet18", "MODEL.CKPT_PATH": folder / "net.safetensors", "CKPT_DIR": folder}
    arguments = ["fit-source", "--cfg", "cfgs/digits_c/cattan.yaml", "--per-class", "2", *overrides(**changes)]
    assert main(arguments) == 0
    return net, folder


@pytest.mark.parametrize("wrap", [nn.Identity, HostWrapper, lambda net: nn.Sequential(nn.Identity(), net)])
@pytest.mark.parametrize("arch", ["torchvision/resnet18", "Standard"])
def test_a_host_finds_what_fit_source_wrote(fitted, wrap, arch, caplog):
    net, folder = fitted
    model = net if wrap is nn.Identity else wrap(net)
    caplog.set_level(logging.INFO)
    found = known_source(model, load_cfg(None, ["MODEL.ADAPTATION", "cattan", "CKPT_DIR", folder]), arch)
    (path,) = (folder / "subspaces").iterdir()
    assert path.name.startswith("torchvision_resnet18-") and str(path) in caplog.text
    assert torch.equal(found.basis, Subspace.load(path).basis) and found.count == 20
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_another_network_does_not(fitted, caplog):
    _, folder = fitted
    torch.manual_seed(1)
    other = resnet18(num_classes=10).eval()
    cfg = load_cfg(None, ["MODEL.ADAPTATION", "cattan", "CKPT_DIR", folder])
    with pytest.raises(ValueError, match="needs a source subspace"):
        known_source(other, cfg, "torchvision/resnet18")
    (path,) = (folder / "subspaces").iterdir()
    known_source(
        other, load_cfg(None, ["MODEL.ADAPTATION", "cattan", "CATTAN.SOURCE_BASIS", path]), "torchvision/resnet18"
    )
    assert "is it the same network?" in caplog.text


def test_the_hash_follows_the_weights_and_not_their_names():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    before = sha256_weights(net)
    assert sha256_weights(HostWrapper(net)) == before
    net[1].num_batches_tracked += 1
    assert sha256_weights(net) == before
    net[1].running_mean += 1
    assert sha256_weights(net) != before


def test_files_are_told_apart_by_architecture_weights_and_centring(tmp_path):
    places = [("timm/vit", "a" * 64, True), ("timm/vit", "b" * 64, True), ("vit", "a" * 64, True)]
    paths = [subspace_path(tmp_path, *place) for place in [*places, ("timm/vit", "a" * 64, False)]]
    for path in paths:
        fit_subspace(torch.randn(20, 4)).save(path)
    assert find_subspaces(tmp_path, True, arch="timm/vit") == paths[:2]
    assert find_subspaces(tmp_path, True, weights="a" * 64) == [paths[0], paths[2]]
    assert find_subspaces(tmp_path, False) == paths[3:]
    assert find_subspaces(tmp_path / "absent", True) == []
