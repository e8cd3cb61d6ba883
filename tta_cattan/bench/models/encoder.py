"""Frozen encoders: images in, one feature vector each out."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tta_cattan.bench.models.checkpoints import load_weights
from tta_cattan.bench.models.libraries import downloaded, import_timm
from tta_cattan.bench.models.networks import with_normalization
from tta_cattan.bench.models.zoo import ARCHITECTURES, LoadedModel, check_arch, resolve_device
from tta_cattan.network.layers import find_classifier, replace_module
from tta_cattan.util.errors import UserError, chosen, first_line
from tta_cattan.util.upstream import import_torchvision

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)

POOLS = ("auto", "token", "head")
WEIGHTS = ("file", "library", "random")
# MAE's checkpoints hold a decoder besides the encoder.
_DECODER = ("decoder_", "mask_token")


class ClassToken(nn.Module):
    """A timm vision transformer's class token, as it leaves the last block and the final normalisation."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, x: Tensor) -> Tensor:
        """Return the class token of each image (n x D)."""
        return self.transformer.forward_features(x)[:, 0]


def load_encoder(cfg: CfgNode, weights: str = "file", pool: str = "auto") -> tuple[LoadedModel, str]:
    """Return ``MODEL.ARCH`` without its classifier, for images in [0, 1], and how its features are pooled.

    ``weights``: those of ``MODEL.CKPT_PATH`` ("file"), those that timm or torchvision fetch ("library"), or "random"
    (for measuring speed). ``pool``: the class token ("token"), the input of the model's own classifier ("head"), or the
    class token where the classifier uses it ("auto").
    """
    arch, path = cfg.MODEL.ARCH, cfg.MODEL.CKPT_PATH
    _check_weights(arch, path, chosen("--weights", weights, WEIGHTS))
    check_arch(arch, None)
    library, _, name = arch.partition("/")
    torch.manual_seed(cfg.RNG_SEED)  # random weights are the same in every process
    if arch in ARCHITECTURES and ARCHITECTURES.get(arch).mean and weights != "library":
        network, classifier, mean, std = _own_encoder(arch)
    elif library in ("timm", "torchvision") and name:
        build = _timm_encoder if library == "timm" else _torchvision_encoder
        network, classifier, mean, std = build(name, weights == "library")
    else:
        raise UserError(
            f"MODEL.ARCH = {arch!r} is not an encoder: give timm/NAME, torchvision/NAME or, with weights in a file, "
            "resnet50_v1"
        )
    if path:
        load_weights(network, path, ignored=(*_DECODER, *((f"{classifier}.",) if classifier else ())))
    pool = _choose_pool(network, arch, chosen("--pool", pool, POOLS))
    model = with_normalization(ClassToken(network) if pool == "token" else network, mean, std)
    origin = {"file": path, "library": f"{library}'s weights", "random": "random weights"}[weights]
    # Channels last: convolutions are a quarter faster on a CPU.
    return LoadedModel.of(model.to(resolve_device(cfg.DEVICE), memory_format=torch.channels_last), origin), pool


@torch.no_grad()
def feature_dim(encoder: LoadedModel, image_size: int) -> int:
    """Return the length of the encoder's features; refuse images of a size it does not take."""
    device = next(encoder.model.parameters()).device
    try:
        features = encoder.model(torch.zeros(1, 3, image_size, image_size, device=device))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"DATA.IMAGE_SIZE = {image_size}: the encoder does not take images of this side ({first_line(error)}); set "
            "DATA.IMAGE_SIZE to the side that it was trained with"
        ) from error
    if features.ndim != 2:
        raise UserError(
            f"the encoder returns features of shape {tuple(features.shape)}, not one vector per image: choose another "
            "--pool or MODEL.ARCH"
        )
    return features.shape[1]


def _check_weights(arch: str, path: str, weights: str) -> None:
    """Refuse to guess where the weights come from."""
    if weights == "file" and not path:
        raise UserError(
            f"MODEL.CKPT_PATH is empty: give the weights of {arch} in a file, or ask for a download with --weights "
            "library (--weights random is for measuring speed)"
        )
    if weights != "file" and path:
        raise UserError(f"MODEL.CKPT_PATH = {path!r} and --weights {weights} contradict each other: give one of them")


def _own_encoder(name: str) -> tuple[nn.Module, str, tuple[float, ...], tuple[float, ...]]:
    architecture = ARCHITECTURES.get(name)
    network = architecture.build(1000)
    classifier = find_classifier(network)
    return (
        replace_module(network, classifier, nn.Identity()),
        classifier,
        tuple(architecture.mean),
        tuple(architecture.std),
    )


def _timm_encoder(name: str, pretrained: bool) -> tuple[nn.Module, str, tuple[float, ...], tuple[float, ...]]:
    build = partial(import_timm().create_model, name, pretrained=pretrained, num_classes=0)
    try:
        model = downloaded(f"timm's {name}", build) if pretrained else build()
    except RuntimeError as error:  # e.g. a tag of weights that timm does not know
        raise UserError(f"MODEL.ARCH = 'timm/{name}' cannot be built ({error})") from error
    known = model.default_cfg
    return model, known.get("classifier") or "", known["mean"], known["std"]


def _torchvision_encoder(name: str, pretrained: bool) -> tuple[nn.Module, str, tuple[float, ...], tuple[float, ...]]:
    models = import_torchvision("torchvision.models")
    weights = models.get_model_weights(name).DEFAULT
    build = partial(models.get_model, name, weights=weights if pretrained else None)
    model = downloaded(f"torchvision's {name}", build) if pretrained else build()
    classifier = find_classifier(model)
    transform = weights.transforms()
    return replace_module(model, classifier, nn.Identity()), classifier, transform.mean, transform.std


def _choose_pool(network: nn.Module, arch: str, pool: str) -> str:
    """Return "token" or "head".

    Note: the classifier of torchvision's transformers takes the class token, so "head" is the token there.
    """
    has_token = getattr(network, "cls_token", None) is not None and hasattr(network, "forward_features")
    if pool == "token" and not has_token:
        raise UserError(f"--pool token: {arch} has no class token that can be read; use --pool head")
    if pool != "auto":
        return pool
    # The class token of a model that averages its patches is not trained.
    pool = "token" if has_token and getattr(network, "global_pool", "token") == "token" else "head"
    logger.info("features of %s: %s", arch, "its class token" if pool == "token" else "the input of its classifier")
    return pool
