"""Our methods under the names that they have in a host."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING

from tta_cattan.host.nodes import require_declared, translate
from tta_cattan.host.source import source_subspace
from tta_cattan.methods import ADAPTATION_REGISTRY, AdaptationMethod, setup_model
from tta_cattan.util.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from yacs.config import CfgNode

# Every host has these three, or their like; ours stay out of the way.
_LEFT_TO_THE_HOST = ("source", "norm", "tent")
# Some hosts have the full SHOT, which trains the whole feature extractor; ours updates the affines only.
_RENAMED = {"shot": "shot_bn"}

SourceBatches = Callable[[], "Iterable[Tensor]"]


def host_names(taken: Container[str] = ()) -> dict[str, str]:
    """Return host name -> our name of every method that we bring along; a name that the host has gets a prefix."""
    names = {}
    for own in ADAPTATION_REGISTRY.registered_names():
        if own not in _LEFT_TO_THE_HOST:
            name = _RENAMED.get(own, own)
            names[f"tta_cattan_{name}" if name in taken else name] = own
    return names


def own_name(name: str) -> str:
    """Return our name of the method that a host knows as ``name``."""
    known = host_names() | {f"tta_cattan_{name}": own for name, own in host_names().items()}
    if name.lower() not in known:
        raise UserError(f"MODEL.ADAPTATION = {name!r} is none of ours: {', '.join(host_names())}")
    return known[name.lower()]


def build_method(
    model: nn.Module,
    cfg: CfgNode,
    num_classes: int | None = None,
    source_batches: SourceBatches | None = None,
) -> AdaptationMethod:
    """Set up the method that the host's ``cfg.MODEL.ADAPTATION`` names on the host's model.

    ``source_batches`` yields the host's source images, where it has them; called only for ``SOURCE_BASIS: auto``.
    """
    require_declared(cfg)
    own = translate(cfg, own_name(cfg.MODEL.ADAPTATION))
    subspace = None
    if ADAPTATION_REGISTRY.get(own.MODEL.ADAPTATION).needs_source_subspace(own):
        subspace = source_subspace(model, own, cfg.MODEL.ARCH, num_classes, source_batches)
    return setup_model(model, own, num_classes, subspace)
