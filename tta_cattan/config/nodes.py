"""Keys that a plug-in declares before the configuration is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from yacs.config import CfgNode

from tta_cattan.config.checks import CHECKS, Check, check_value
from tta_cattan.config.defaults import _C
from tta_cattan.config.tree import key_names, leaves, suggestion, to_dict
from tta_cattan.util.errors import UserError

_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_SCALARS = (bool, int, float, str)


def add_node(name: str, node: Mapping[str, Any], checks: Mapping[str, Check] | None = None) -> None:
    """Declare the keys ``NAME.KEY`` with their defaults and checks; the same declaration again changes nothing.

    Args:
        name: the new node, in upper case, such as ``"COTTA"``.
        node: the defaults by key; a key's type is its default's (entries of an empty list are strings).
        checks: by key inside the node (``"RST"``, not ``"COTTA.RST"``), see `tta_cattan.config.checks`.
    """
    declared = {f"{name}.{key}": check for key, check in (checks or {}).items()}
    _check_declaration(name, node, declared)
    if name in _C:
        if _fingerprint(name, _C[name], CHECKS) != _fingerprint(name, node, declared):
            raise UserError(f"config node {name!r} is already declared with other keys, defaults or checks: rename it")
        return
    _C.defrost()
    _C[name] = CfgNode(to_dict(node))
    _C.freeze()
    CHECKS.update(declared)


def _check_declaration(name: str, node: Mapping[str, Any], declared: Mapping[str, Check]) -> None:
    """Refuse names that are not upper case, defaults without a type of their own, and checks that do not fit."""
    for part in (part for key in [name, *key_names(node)] for part in str(key).split(".")):
        if not _NAME.fullmatch(part):
            raise UserError(f"config node {name!r}: the name {part!r} must be upper case, such as 'MY_KEY'")
    defaults = dict(leaves(node, f"{name}."))
    for key in declared:
        if key not in defaults:
            raise UserError(f"config node {name!r}: check of an undeclared key {key!r}.{suggestion(key, defaults)}")
    for key, value in defaults.items():
        types = {type(entry) for entry in value} if isinstance(value, (list, tuple)) else {type(value)}
        if len(types) > 1 or not types.issubset(_SCALARS):
            raise UserError(f"{key} = {value!r}: a default must be a bool, int, float or str, or a list of one of them")
        check_value(key, value, declared.get(key))


def _fingerprint(name: str, node: Any, checks: Mapping[str, Check]) -> Any:
    """Return what makes two declarations the same; repr, because 1, 1.0 and True are equal and not the same."""
    if not isinstance(node, Mapping):
        return repr(node)
    return {key: (repr(value), checks.get(key)) for key, value in leaves(to_dict(node), f"{name}.")}
