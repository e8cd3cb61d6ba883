"""SHOT's network: a backbone, a bottleneck with batch normalisation, a weight-normalised classifier."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tta_cattan.bench.models.checkpoints import load_weights
from tta_cattan.bench.models.libraries import is_library_name, load_from_library
from tta_cattan.bench.models.networks import inner_network
from tta_cattan.network.layers import find_classifier, replace_module
from tta_cattan.util.errors import UserError

SHOT_PREFIX = "shot/"
BOTTLENECK = 256


class ShotNetwork(nn.Module):
    """``backbone -> Linear(D, 256) -> BatchNorm1d -> weight-normalised Linear``, with SHOT's initial weights."""

    def __init__(self, backbone: nn.Module, dim: int, num_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.bottleneck = nn.Linear(dim, BOTTLENECK)
        self.bn = nn.BatchNorm1d(BOTTLENECK)
        fc = nn.Linear(BOTTLENECK, num_classes)
        for linear in (self.bottleneck, fc):
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)
        nn.init.normal_(self.bn.weight, 1.0, 0.02)
        self.fc = weight_norm(fc)
        self.removed_head = ""  # the layer of a backbone's checkpoint that is not used here

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images in [0, 1]."""
        return self.fc(self.bn(self.bottleneck(self.backbone(x))))

    def get_classifier(self) -> nn.Module:
        """Return the classifier, by timm's method: the backbone's own is not the last layer."""
        return self.fc


def shot_network(arch: str, own: Callable[[int], nn.Module] | None, num_classes: int) -> ShotNetwork:
    """Return SHOT's network, with random weights, on a backbone of torchvision or timm, or on one of our ``own``."""
    whole = load_from_library(arch, None, pretrained=False) if own is None else own(num_classes)
    head, dim = remove_head(whole)
    network = ShotNetwork(whole, dim, num_classes)
    network.removed_head = head
    return network


def shot_head(num_classes: int, in_features: int) -> ShotNetwork:
    """Return SHOT's bottleneck and classifier for features of a frozen backbone."""
    return ShotNetwork(nn.Identity(), in_features, num_classes)


def init_backbone(arch: str, model: ShotNetwork, init: str) -> None:
    """Load the backbone's weights: 'pretrained' (the library's) or those of a file."""
    if init != "pretrained":
        load_weights(inner_network(model.backbone), init, ignored=(f"{model.removed_head}.",))
        return
    if not is_library_name(arch):
        raise UserError(f"SOURCE.INIT = 'pretrained': {arch} has no published weights; use 'random' or a file")
    try:
        donor = load_from_library(arch, None, pretrained=True)
    except UserError as error:  # here the backbone's file is asked for
        raise UserError(str(error).replace("MODEL.CKPT_PATH", "SOURCE.INIT")) from error
    remove_head(donor)
    model.backbone.load_state_dict(donor.state_dict())


def remove_head(model: nn.Module) -> tuple[str, int]:
    """Remove the last linear layer of a network; return its name in the bare network and the number of features."""
    bare = inner_network(model)
    name = find_classifier(bare)
    dim = bare.get_submodule(name).in_features
    replace_module(bare, name, nn.Identity())
    return name, dim
