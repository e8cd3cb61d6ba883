"""Our configuration keys inside a host's YACS config, and the way back."""

from __future__ import annotations

from typing import Any

import yacs.config
from yacs.config import CfgNode

from tta_cattan.config import check_cfg, get_defaults
from tta_cattan.config.coerce import Source, coerce
from tta_cattan.config.tree import leaves
from tta_cattan.util.errors import UserError

# What every method reads, beside the node of its own.
_COMMON = ("MODEL.EPISODIC", "MODEL.CLASSIFIER", "BN.STATISTICS", "BN.MOM", "BN.BLEND", "MIXED_PRECISION", "CKPT_DIR")


def method_keys() -> dict[str, Any]:
    """Return every key that one of our methods reads, with its default; a host may already have some of them."""
    from tta_cattan.methods import ADAPTATION_REGISTRY

    nodes = {ADAPTATION_REGISTRY.get(name).config_node for name in ADAPTATION_REGISTRY.registered_names()}
    return {
        key: value
        for key, value in leaves(get_defaults())
        if key in _COMMON or key.split(".")[0] in nodes or key.startswith("OPTIM.")
    }


def declare(cfg: CfgNode) -> None:
    """Add the keys that ``cfg`` lacks, with our defaults; keys and values of the host stay as they are."""
    keys = method_keys()
    frozen = cfg.is_frozen()
    cfg.defrost()
    for key, default in keys.items():
        *nodes, name = key.split(".")
        node = cfg
        for part in nodes:
            if part not in node:
                node[part] = CfgNode()
            node = node[part]
        if name not in node:
            node[name] = default
    if frozen:
        cfg.freeze()
    _accept_integers(keys)


def translate(cfg: CfgNode, method: str) -> CfgNode:
    """Return our configuration of ``method`` (our name for it) with the values that the host's ``cfg`` has."""
    own = get_defaults()
    given = dict(leaves(cfg))
    for key, default in method_keys().items():
        if key not in given:
            continue
        *nodes, name = key.split(".")
        node = own
        for part in nodes:
            node = node[part]
        node[name] = coerce(key, given[key], default, Source.FILE)
    own.MODEL.ADAPTATION = method
    check_cfg(own)
    own.freeze()
    return own


def require_declared(cfg: CfgNode) -> None:
    """Refuse a host config that was loaded before our keys were declared in it."""
    if "CATTAN" not in cfg:
        raise UserError(
            "the host's config has no CATTAN node: call tta_cattan.host.declare(cfg) before the config is loaded"
        )


def _accept_integers(keys: dict[str, Any]) -> None:
    """Let YACS take ``CATTAN.LAMBDA_LR 1`` for 1.0, in our keys only: it compares types exactly and has no hook."""
    check = getattr(yacs.config, "_check_and_coerce_cfg_value_type", None)
    if check is None or hasattr(check, "keys_of_ours"):
        return

    def lenient(replacement: Any, original: Any, key: str, full_key: str) -> Any:
        if full_key in keys and type(original) is float and type(replacement) is int:
            replacement = float(replacement)
        return check(replacement, original, key, full_key)

    lenient.keys_of_ours = tuple(keys)  # type: ignore[attr-defined]
    yacs.config._check_and_coerce_cfg_value_type = lenient
