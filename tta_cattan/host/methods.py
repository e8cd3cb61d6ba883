"""Our methods inside a host: their keys in its config, their names there, and how one is built."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yacs.config
from yacs.config import CfgNode

from tta_cattan.alignment import SourceMoments, Subspace, fit_source_moments, fit_subspace
from tta_cattan.alignment.subspace import find_subspaces, moments_path, sha256_weights, subspace_path
from tta_cattan.config import check_cfg, declared_keys, get_defaults, leaves, method_keys, set_value
from tta_cattan.methods import ADAPTATION_REGISTRY, AdaptationMethod, CATTAnForward, setup_model
from tta_cattan.network.layers import find_classifier, iterate_features
from tta_cattan.util.errors import UserError
from tta_cattan.util.keys import Source

if TYPE_CHECKING:
    from torch import Tensor, nn

logger = logging.getLogger(__name__)

_OWN_CHOICE = "auto"  # value of BN.STATISTICS in a host: the default of the method's class
_KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z][A-Z0-9_]*)*")

# Every host has its own version of these three.
_LEFT_TO_THE_HOST = ("source", "norm", "tent")
# Some hosts have the full SHOT, which trains the whole feature extractor; ours updates the affines only.
_RENAMED = {"shot": "shot_bn"}

SourceBatches = Callable[[], "Iterable[Tensor]"]


def host_keys() -> dict[str, Any]:
    """Return every key that one of our methods reads, with its default; a host may already have some of them.

    Note: BN.STATISTICS is left to the method, because its default differs between methods.
    """
    keys = {place: declared.default for place, declared in method_keys().items()}
    return {**keys, "BN.STATISTICS": _OWN_CHOICE, "CKPT_DIR": declared_keys()["CKPT_DIR"].default}


def declare(cfg: CfgNode) -> None:
    """Add the keys that ``cfg`` lacks, with our defaults; the host's keys and values stay as they are."""
    keys, given = host_keys(), dict(leaves(cfg))
    frozen = cfg.is_frozen()
    cfg.defrost()
    for place, default in keys.items():
        if place not in given:
            set_value(cfg, place, default)
    if frozen:
        cfg.freeze()
    _accept_integers(keys)


def _accept_integers(keys: dict[str, Any]) -> None:
    """Let YACS accept ``CATTAN.LAMBDA_LR 1`` as 1.0, in our keys only: it compares types exactly and has no hook."""
    check = getattr(yacs.config, "_check_and_coerce_cfg_value_type", None)
    if check is None or hasattr(check, "keys_of_ours"):
        return

    def lenient(replacement: Any, original: Any, key: str, full_key: str) -> Any:
        if full_key in keys and type(original) is float and type(replacement) is int:
            replacement = float(replacement)
        return check(replacement, original, key, full_key)

    lenient.keys_of_ours = tuple(keys)  # type: ignore[attr-defined]
    yacs.config._check_and_coerce_cfg_value_type = lenient


def split_overrides(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the host's arguments and the trailing ``CATTAN.D 256 ...``, for hosts whose parser has no such pairs."""
    for place, argument in enumerate(arguments):
        follows_option = place > 0 and arguments[place - 1].startswith("--") and "=" not in arguments[place - 1]
        if _KEY.fullmatch(argument) and not follows_option:
            pairs = arguments[place:]
            if len(pairs) % 2:
                raise UserError(f"{' '.join(pairs)}: must be pairs KEY VALUE; a key or a value is missing")
            return arguments[:place], pairs
    return arguments, []


def host_names(taken: Container[str] = ()) -> dict[str, str]:
    """Return host name -> our name of every method that we add; a name that the host already has gets a prefix."""
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
        raise UserError(f"MODEL.ADAPTATION = {name!r} is not one of our methods: {', '.join(host_names())}")
    return known[name.lower()]


def translate(cfg: CfgNode, method: str) -> CfgNode:
    """Return our configuration of ``method`` (our name for it) with the values of the host's ``cfg``."""
    own = get_defaults(method)
    given, keys = dict(leaves(cfg)), declared_keys()
    for place in host_keys():
        if place in given and (place, given[place]) != ("BN.STATISTICS", _OWN_CHOICE):
            set_value(own, place, keys[place].accept(place, given[place], Source.FILE))
    own.MODEL.ADAPTATION = method
    check_cfg(own)
    own.freeze()
    return own


def build_from_host(
    model: nn.Module,
    cfg: CfgNode,
    num_classes: int | None = None,
    source_batches: SourceBatches | None = None,
) -> AdaptationMethod:
    """Set up the method that the host's ``cfg.MODEL.ADAPTATION`` names on the host's model."""
    if "CATTAN" not in cfg:
        raise UserError(
            "the host's config has no CATTAN node: call tta_cattan.host.declare(cfg) before the config is loaded"
        )
    return build(model, translate(cfg, own_name(cfg.MODEL.ADAPTATION)), cfg.MODEL.ARCH, num_classes, source_batches)


def build(
    model: nn.Module,
    cfg: CfgNode,
    arch: str,
    num_classes: int | None = None,
    source_batches: SourceBatches | None = None,
) -> AdaptationMethod:
    """Set up the method of our ``cfg`` on the host's model, with the source subspace if the method needs one.

    ``source_batches`` yields the host's source images if it has them; it is called only if ``auto`` finds no file.
    """
    needs_source = ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION).needs_source_subspace(cfg)
    source = known_source(model, cfg, arch, num_classes, source_batches) if needs_source else None
    return setup_model(model, cfg, num_classes, source)


def known_source(
    model: nn.Module,
    cfg: CfgNode,
    arch: str,
    num_classes: int | None = None,
    source_batches: SourceBatches | None = None,
) -> Subspace | SourceMoments:
    """Return the subspace or moments that the method's ``SOURCE_BASIS`` or ``SOURCE_MOMENTS`` names.

    ``auto`` is the file for these weights in CKPT_DIR (for a subspace, under any architecture name); if there is none,
    it is fitted to ``source_batches`` and saved there.
    """
    method: Any = ADAPTATION_REGISTRY.get(cfg.MODEL.ADAPTATION)
    forward, layer, weights = issubclass(method, CATTAnForward), method.value_in(cfg, "layer"), sha256_weights(model)
    kind: type[Subspace] | type[SourceMoments] = SourceMoments if forward else Subspace
    key = "source_moments" if forward else "source_basis"
    choice = method.value_in(cfg, key)
    if choice != "auto":
        return _load(kind, choice, weights)
    if forward:
        path = moments_path(cfg.CKPT_DIR, arch, weights, method.value_in(cfg, "channels"), layer)
    else:
        centered = method.value_in(cfg, "centering") != "none"
        path = subspace_path(cfg.CKPT_DIR, arch, weights, centered, layer)
        if not path.is_file():
            path = next(iter(find_subspaces(cfg.CKPT_DIR, centered, layer, weights=weights)), path)
    if path.is_file():
        return _load(kind, path, weights)
    if source_batches is None:
        what, without = ("the source's moments", "none") if forward else ("a source subspace", "classifier")
        raise UserError(
            f"{method.title} needs {what}: {path} is missing and this host has no loader of source data. Set "
            f"{method.place_of(key)} to a file that `tta-cattan fit-source` wrote, or to {without!r} (no source data)"
        )
    logger.info("learning the source from the host's source data (kept in %s)", path)
    provenance = {"weights_sha256": weights, "model": arch, "data": "source loader of the host"}
    if forward:
        found = fit_source_moments(model, source_batches(), method.value_in(cfg, "channels"), provenance, layer)
    else:
        classifier = "" if layer else find_classifier(model, cfg.MODEL.CLASSIFIER, num_classes)
        device = next(model.parameters()).device
        features = iterate_features(model, classifier, (x.to(device) for x in source_batches()), layer)
        found = fit_subspace(features, center=centered, provenance=provenance, layer=layer)
    found.save(path)
    logger.info("source: %s", found)
    return found


def _load(kind: type[Subspace] | type[SourceMoments], path: str | Path, weights: str) -> Subspace | SourceMoments:
    """Return the subspace or moments in a file; warn if they were fitted for another model.

    Note: they are not refused, because a host's wrapper may add its own parameters to the same network.
    """
    found = kind.load(path)
    logger.info("%s of the source: %s", kind.__name__, path)
    made_for = str(found.provenance.get("weights_sha256", weights))
    if made_for == weights:
        return found
    logger.warning(
        "%s was fitted for the weights %s, and this model has %s: is it the same network?",
        path, made_for[:12], weights[:12],
    )  # fmt: skip
    return replace(found, provenance={k: v for k, v in found.provenance.items() if k != "weights_sha256"})
