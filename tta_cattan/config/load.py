"""Loading a checked configuration: YAML files that inherit from each other, then overrides."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yacs.config import CfgNode

from tta_cattan.config.declared import check_cfg, declared_keys, get_defaults, set_value
from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.util.errors import UserError, nearest
from tta_cattan.util.keys import Key, Source

_BASE = "_BASE_"
_MAX_BYTES = 1 << 20
_MOST_NODES = 100_000  # in one file, with all aliases expanded
_FOLDER = "cfgs"
_PACKAGE = Path(__file__).parent.parent


class _StrictSafeLoader(yaml.SafeLoader):
    """A safe loader that refuses duplicate keys, of which YAML silently keeps the last, and excessive aliases."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._sizes: dict[int, int] = {}  # size of each composed node by its id, with all aliases expanded

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        """Compose a node; refuse one that is too large once its aliases are expanded."""
        mark = self.peek_event().start_mark
        node = super().compose_node(parent, index)
        if id(node) not in self._sizes:
            if node.end_mark is None:  # an unfinished collection
                raise yaml.composer.ComposerError(None, None, "an alias stands inside its own value", mark)
            self._sizes[id(node)] = 1 + sum(self._sizes[id(child)] for child in _children(node))
        if self._sizes[id(node)] > _MOST_NODES:
            problem = f"the aliases stand for more than {_MOST_NODES:,} values: write the values out"
            raise yaml.composer.ComposerError(None, None, problem, mark)
        return node

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


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def load_cfg(path: str | os.PathLike[str] | None, overrides: Sequence[Any] = ()) -> CfgNode:
    """Return the frozen, checked configuration: defaults, then the file and its bases, then ``overrides``.

    The defaults are those of the method that ``MODEL.ADAPTATION`` names, as its class declares them.

    Args:
        path: a YAML file, see `find_config`; None for the defaults alone.
        overrides: ``["CATTAN.D", "256", ...]``, as text from the command line or as Python values.
    """
    values = {} if path is None else _read(find_config(path), ())
    values.update(_read_overrides(overrides))
    method = values.get("MODEL.ADAPTATION", declared_keys()["MODEL.ADAPTATION"].default)
    cfg = get_defaults(method.lower())
    for place, value in values.items():
        set_value(cfg, place, value)
    check_cfg(cfg)
    cfg.freeze()
    return cfg


def _read(path: Path, chain: tuple[Path, ...]) -> dict[str, Any]:
    """Return a file's values merged over those of its bases, by dotted key; ``chain`` is the files that led here."""
    if path.resolve() in [file.resolve() for file in chain]:
        raise UserError(f"{_BASE} goes in a circle: {' -> '.join(map(str, (*chain, path)))}")
    mapping = read_yaml(path)
    values: dict[str, Any] = {}
    for base in _bases(mapping.pop(_BASE, []), path):
        values.update(_read(base, (*chain, path)))
    values.update(_flatten(mapping, path))
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
    # ValueError: not UTF-8, or an invalid date or number. RecursionError: maliciously deep nesting.
    except (yaml.YAMLError, ValueError, OSError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: must hold keys and values at the top level, not {type(content).__name__}")
    return content


def _flatten(mapping: Mapping[Any, Any], path: Path, prefix: str = "") -> dict[str, Any]:
    """Return the values of a file's ``mapping`` by dotted key, each converted to the type of its default."""
    values: dict[str, Any] = {}
    for name, value in mapping.items():
        key = f"{prefix}{name}"
        if "." in str(name):
            node, _, last = key.rpartition(".")
            raise UserError(f"{path}: {key!r} is two keys in YAML: write {node}: {{{last}: ...}}")
        if _keys_in(key) and isinstance(value, dict):
            values.update(_flatten(value, path, f"{key}."))
        elif value is not None or not _keys_in(key):  # a node whose keys are all commented out is None
            values[key] = _accepted(key, value, Source.FILE, path)
    return values


def _read_overrides(overrides: Sequence[Any]) -> dict[str, Any]:
    """Return the values of a flat list of keys and values, by dotted key."""
    where = "overrides"
    if isinstance(overrides, str) or len(overrides) % 2:
        raise UserError(f"{where}: {overrides!r} must be pairs KEY VALUE: a key or a value is missing")
    pairs = zip(map(str, overrides[::2]), overrides[1::2], strict=True)
    return {key: _accepted(key, value, Source.OVERRIDE, where) for key, value in pairs}


def _accepted(key: str, value: Any, source: Source, where: Path | str) -> Any:
    """Return ``value`` checked and in the key's type; errors say where the value was given."""
    declared = find_key(key, f"{where}: {key} = {value!r}")
    try:
        return declared.accept(key, value, source)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def find_key(key: str, given: str) -> Key:
    """Return the declaration of a key; for an unknown key, suggest the nearest, or keys of that name in other nodes."""
    keys = declared_keys()
    if group := _keys_in(key):
        raise UserError(f"{given}: is a group of keys, set one of {', '.join(group)}")
    if key not in keys:
        names = [*keys, *dict.fromkeys(name.partition(".")[0] for name in keys)]
        namesakes = " or ".join(repr(name) for name in keys if name.endswith(f".{key.upper()}"))
        hint = nearest(key.upper(), names) or (f" Did you mean {namesakes}?" if namesakes else "")
        raise UserError(f"{given}: unknown key {key!r}.{hint}")
    return keys[key]


def _keys_in(node: str) -> list[str]:
    """Return the keys of a node; none if there is no such node."""
    return [key for key in declared_keys() if key.startswith(f"{node}.")]


def find_config(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` if it is a file, otherwise the file at that relative path in the package's ``cfgs``."""
    given = Path(path)
    if given.is_file():
        return given
    shipped = shipped_folder()
    inside = Path(*given.parts[1:]) if given.parts[:1] == (_FOLDER,) else given
    if (shipped / inside).is_file():
        return shipped / inside
    if given.is_dir():
        raise UserError(f"{given}: is a folder, not a config file")
    base = inside.with_name("base.yaml")
    if given.stem in ADAPTATION_REGISTRY and (shipped / base).is_file():
        raise UserError(f"{given}: there is no such config file. Give {_FOLDER}/{base} MODEL.ADAPTATION {given.stem}")
    names = [str(file) for file in given.parent.glob("*.y*ml")]
    names += [str(Path(_FOLDER) / file.relative_to(shipped)) for file in shipped.rglob("*.y*ml")]
    raise UserError(f"{given}: there is no such config file.{nearest(str(given), names)}")


def shipped_folder() -> Path:
    """Return the folder of the package's own configs: inside the package when installed, beside it in a checkout.

    Note: the inner folder comes first, because a ``cfgs`` beside an installed package would belong to someone else.
    """
    installed = _PACKAGE / _FOLDER
    return installed if installed.is_dir() else _PACKAGE.parent / _FOLDER


def to_dict(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``cfg`` as plain dictionaries and lists that share nothing with it."""
    return {
        key: to_dict(value)
        if isinstance(value, Mapping)
        else list(value)
        if isinstance(value, (list, tuple))
        else value
        for key, value in cfg.items()
    }


def dump_yaml(cfg: Mapping[str, Any]) -> str:
    """Return ``cfg`` as YAML that ``load_cfg`` reads back as the same configuration."""
    return yaml.safe_dump(to_dict(cfg), sort_keys=False, allow_unicode=True)
