"""Our configuration keys inside a host's YACS config, and the way back."""

from __future__ import annotations

from typing import Any

import yacs.config
from yacs.config import CfgNode

from tta_cattan.config import check_cfg, declared_keys, get_defaults, leaves, method_keys, set_value
from tta_cattan.util.errors import UserError
from tta_cattan.util.keys import Source

_OWN_CHOICE = "auto"  # in a host: as the method's class has it


def host_keys() -> dict[str, Any]:
    """Return every key that one of our methods reads, with its default; a host may already have some of them.

    Note: statistics that methods differ in are left to the method.
    """
    keys = {place: declared.default for place, declared in method_keys().items()}
    return {**keys, "BN.STATISTICS": _OWN_CHOICE, "CKPT_DIR": declared_keys()["CKPT_DIR"].default}


def declare(cfg: CfgNode) -> None:
    """Add the keys that ``cfg`` lacks, with our defaults; keys and values of the host stay as they are."""
    keys = host_keys()
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
    own = get_defaults(method)
    given, keys = dict(leaves(cfg)), declared_keys()
    for place in host_keys():
        if place in given and (place, given[place]) != ("BN.STATISTICS", _OWN_CHOICE):
            set_value(own, place, keys[place].accept(place, given[place], Source.FILE))
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
