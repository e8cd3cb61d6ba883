"""A checked configuration from YAML files that inherit from each other, and overrides."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yacs.config import CfgNode

from tta_cattan.config.checks import CHECKS, check_cfg, check_value
from tta_cattan.config.coerce import Source, coerce
from tta_cattan.config.defaults import _C, get_defaults
from tta_cattan.config.find import find_config
from tta_cattan.config.tree import key_names, suggestion
from tta_cattan.util.errors import UserError

_BASE = "_BASE_"
_MAX_BYTES = 1 << 20


class _StrictSafeLoader(yaml.SafeLoader):
    """A safe loader that refuses a key given twice, where YAML would silently keep the last."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.composer.ComposerError(
                        None, None, f"the key {key.value!r} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return node


def load_cfg(path: str | os.PathLike[str] | None, overrides: Sequence[Any] = ()) -> CfgNode:
    """Return the frozen, checked configuration: defaults, then the file and its bases, then ``overrides``.

    Args:
        path: a YAML file, see `find_config`; None for the defaults alone.
        overrides: ``["CATTAN.D", "256", ...]``, as text from the command line or as Python values.
    """
    values = {} if path is None else _read(find_config(path), ())
    values.update(_read_overrides(overrides))
    cfg = get_defaults()
    for key, value in values.items():
        *nodes, name = key.split(".")
        node = cfg
        for part in nodes:
            node = node[part]
        node[name] = value
    check_cfg(cfg)
    cfg.freeze()
    return cfg


def _read(path: Path, chain: tuple[Path, ...]) -> dict[str, Any]:
    """Return the values of a file over those of its bases, by dotted key; ``chain`` is the files that led here."""
    if path.resolve() in [file.resolve() for file in chain]:
        raise UserError(f"{_BASE} goes in a circle: {' -> '.join(map(str, (*chain, path)))}")
    mapping = read_yaml(path)
    values: dict[str, Any] = {}
    for base in _bases(mapping.pop(_BASE, []), path):
        values.update(_read(base, (*chain, path)))
    values.update(_flatten(mapping, _C, path))
    return values


def _bases(given: Any, path: Path) -> list[Path]:
    """Return the files that ``_BASE_`` names, relative to the file that names them."""
    names = given if isinstance(given, list) else [given]
    if not all(isinstance(name, str) and name for name in names):
        raise UserError(f"{path}: {_BASE} = {given!r}: must be a path or a list of paths")
    bases = [path.parent / name for name in names]
    for name, base in zip(names, bases, strict=True):
        if not base.is_file():
            raise UserError(f"{path}: {_BASE} = {name!r}: there is no file {base}")
    return bases


def read_yaml(path: Path) -> dict[Any, Any]:
    """Return the mapping in a YAML file; an empty file is an empty mapping."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UserError(f"{path} has {path.stat().st_size:,} bytes: a config has less than {_MAX_BYTES:,}")
        content = yaml.load(path.read_text(encoding="utf-8-sig"), Loader=_StrictSafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}{line}: {error.problem}") from None
    except UserError:
        raise
    # ValueError: not UTF-8, or a date or number that looks right and is not. RecursionError: nested to do harm.
    except (yaml.YAMLError, ValueError, OSError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: must hold keys and values at the top level, not {type(content).__name__}")
    return content


def _flatten(mapping: Mapping[Any, Any], node: CfgNode, path: Path, prefix: str = "") -> dict[str, Any]:
    """Return the values of ``mapping`` by dotted key, each in the type of its default in ``node``."""
    values: dict[str, Any] = {}
    for name, value in mapping.items():
        key = f"{prefix}{name}"
        if name not in node:
            raise _unknown(key, path)
        if not isinstance(node[name], CfgNode):
            values[key] = _accepted(key, value, node[name], Source.FILE, path)
        elif isinstance(value, dict):
            values.update(_flatten(value, node[name], path, f"{key}."))
        elif value is not None:  # a node whose keys are all commented out is None
            raise _not_a_value(key, value, node[name], path)
    return values


def _read_overrides(overrides: Sequence[Any]) -> dict[str, Any]:
    """Return the values of a flat list of keys and values, by dotted key."""
    where = "overrides"
    if isinstance(overrides, str) or len(overrides) % 2:
        raise UserError(f"{where}: {overrides!r} must be pairs KEY VALUE: a key or a value is missing")
    values: dict[str, Any] = {}
    for key, value in zip(overrides[::2], overrides[1::2], strict=True):
        node: Any = _C
        for part in str(key).split("."):
            if not isinstance(node, CfgNode) or part not in node:
                raise _unknown(str(key), where)
            node = node[part]
        if isinstance(node, CfgNode):
            raise _not_a_value(key, value, node, where)
        values[key] = _accepted(key, value, node, Source.OVERRIDE, where)
    return values


def _accepted(key: str, value: Any, default: Any, source: Source, where: Path | str) -> Any:
    """Return ``value`` in the type of ``default``, checked; the error says where the value stands."""
    try:
        typed = coerce(key, value, default, source)
        check_value(key, typed, CHECKS.get(key))
        return typed
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _unknown(key: str, where: Path | str) -> UserError:
    """Return the error for a key that is not declared."""
    names = list(key_names(_C))
    if key in names:
        node, _, name = key.rpartition(".")
        return UserError(f"{where}: {key!r} is two keys in YAML: write {node}: {{{name}: ...}}")
    return UserError(f"{where}: unknown key {key!r}.{suggestion(key, names)}")


def _not_a_value(key: str, value: Any, node: CfgNode, where: Path | str) -> UserError:
    """Return the error for a value that is given to a node."""
    return UserError(
        f"{where}: {key} = {value!r}: is a group of keys, set one of {', '.join(key_names(node, f'{key}.'))}"
    )
