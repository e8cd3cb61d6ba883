"""A configuration as dotted keys, as plain dictionaries and as YAML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

import yaml

_CUTOFF = 0.6


def leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``("OPTIM.LR", 0.001)`` and so on, in the order of declaration."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def key_names(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all keys, those of the nodes included."""
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from key_names(value, f"{prefix}{key}.")


def to_dict(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``cfg`` as plain dictionaries and lists that share nothing with it."""
    return {key: _plain(value) for key, value in cfg.items()}


def dump_yaml(cfg: Mapping[str, Any]) -> str:
    """Return ``cfg`` as YAML from which ``load_cfg`` makes the same configuration."""
    return yaml.safe_dump(to_dict(cfg), sort_keys=False, allow_unicode=True)


def suggestion(key: str, valid: Iterable[str]) -> str:
    """Return ``" Did you mean 'CATTAN.D'?"`` for the valid key nearest to ``key``, or an empty string.

    Note: the last part alone counts too, so that a right name in the wrong node is found. A name without a node is
    equally near to its namesakes in several nodes, and then all of them are shown.
    """
    scores = {name: _likeness(key, name) for name in valid}
    best = max(scores.values(), default=(0.0, 0.0))
    if best[0] < _CUTOFF:
        return ""
    names = [repr(name) for name, score in scores.items() if score == best]
    return f" Did you mean {' or '.join(names)}?"


def _likeness(key: str, name: str) -> tuple[float, float]:
    """Return how alike two dotted keys are, and what decides between equals."""
    whole = _ratio(key, name)
    last = _ratio(key.rpartition(".")[2], name.rpartition(".")[2])
    return max(whole, last), whole if "." in key else 0.0


def _ratio(a: str, b: str) -> float:
    """Return the similarity of two names, whatever their case."""
    return SequenceMatcher(None, a.lower(), b.lower()).ratio()


def _plain(value: Any) -> Any:
    """Return ``value`` with nodes as dictionaries and sequences as lists."""
    if isinstance(value, Mapping):
        return to_dict(value)
    return list(value) if isinstance(value, (list, tuple)) else value
