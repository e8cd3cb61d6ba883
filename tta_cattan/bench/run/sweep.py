"""Sweeps: several settings of a key, each a row of its own in a comparison."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tta_cattan.config import cfg as defaults
from tta_cattan.config.tree import key_names, leaves, suggestion
from tta_cattan.methods import ADAPTATION_REGISTRY
from tta_cattan.util.errors import UserError

_FIT = "it is fixed when a subspace is fitted; make files with `tta-cattan fit-source` and sweep CATTAN.SOURCE_BASIS"
# What one run has one of, what has an option of its own, and what a file in CKPT_DIR would silently overrule.
_REFUSED = {
    "SOURCE.PER_CLASS": _FIT,
    "DATA.SOURCE_DIR": _FIT,
    "MODEL.ADAPTATION": "compare methods with --methods",
    "SAVE_DIR": "a run has one folder",
    "LOG_DEST": "a run has one log",
}
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[(]*[\])])")


@dataclass(frozen=True)
class Sweep:
    """A key and the texts of its settings."""

    key: str
    settings: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Return the sweep that ``KEY=a,b,c`` spells; a setting that is itself a list stands in brackets."""
        key, equals, settings = text.partition("=")
        values = tuple(value.strip() for value in _COMMA_OUTSIDE_BRACKETS.split(settings))
        if not equals or not all(values):
            raise UserError(f"--sweep {text!r}: give KEY=a,b,c, e.g. CATTAN.D=64,128,256")
        if key in _REFUSED:
            raise UserError(f"--sweep {text!r}: {key} cannot be swept: {_REFUSED[key]}")
        keys = dict(leaves(defaults))
        if key not in keys:
            known = key in key_names(defaults)
            hint = " It is a group of keys" if known else suggestion(key, keys)
            raise UserError(f"--sweep {text!r}: there is no key {key!r}.{hint}")
        return cls(key, values)


def parse_sweeps(texts: Iterable[str], overrides: Sequence[Any] = ()) -> list[Sweep]:
    """Return one sweep per text, refusing a key that is given twice, in sweeps or also as an override."""
    sweeps: list[Sweep] = []
    for text in texts:
        sweep = Sweep.parse(text)
        if sweep.key in [other.key for other in sweeps] or sweep.key in overrides[::2]:
            raise UserError(f"--sweep {text!r}: {sweep.key} is given twice")
        sweeps.append(sweep)
    return sweeps


def method_nodes(but: str | None = None) -> set[str]:
    """Return the config nodes that methods have for themselves; those of other methods than ``but``."""
    own = None if but is None else ADAPTATION_REGISTRY.get(but).config_node
    nodes = {ADAPTATION_REGISTRY.get(name).config_node for name in ADAPTATION_REGISTRY.registered_names()}
    return {node for node in nodes - {own} if node}


def sweeps_of(method: str, sweeps: Iterable[Sweep]) -> list[Sweep]:
    """Return the sweeps that ``method`` can notice: the keys of other methods alone would only repeat it."""
    others = method_nodes(method)
    return [sweep for sweep in sweeps if sweep.key.partition(".")[0] not in others]
