"""Configs drawn at random: the last layer wins, what is written is read back, anything else is refused."""

from __future__ import annotations

from typing import Any

import bad_files
import yaml
from fuzzing import FAST, JSON, TEXT, folder, taken
from hypothesis import given
from hypothesis import strategies as st

from tta_cattan.config import dump_yaml, get_defaults, leaves, load_cfg
from tta_cattan.util.files import write_text

VALUES = {
    "OPTIM.LR": st.floats(0, allow_infinity=False),
    "OPTIM.STEPS": st.integers(1, 10**6),
    "MODEL.EPISODIC": st.booleans(),
    "MODEL.CKPT_PATH": TEXT.filter(lambda text: "\0" not in text),
    "CATTAN.D": st.integers(0, 10**6),
    "CATTAN.CONFIDENCE": st.sampled_from(["hlr", "slr", "entropy"]),
    "CORRUPTION.SEVERITY": st.lists(st.integers(0, 5), unique=True, min_size=1),
    "SEEDS": st.lists(st.integers(0, 2**32 - 1), unique=True, max_size=4),
}
LAYER = st.fixed_dictionaries({}, optional=VALUES)
KEYS = [name for name, _ in leaves(get_defaults())]
PARTS = sorted({part for name in KEYS for part in name.split(".")})
TOKENS = st.sampled_from(
    [*PARTS, *":,-[]{}&*!#|>'\"%@`?\n\t", "\n  ", ": ", "- ", "&a ", "*a", "<<: *a",
     "!!python/object/apply:os.mkdir [x]", "!!binary ", "!!timestamp ", "_BASE_: ", "mine.yaml", "nan", ".inf", "1e999",
     "0x1F", "1_000", "0o7", "1:30", "2001-99-99", "true", "yes", "~", "\0", "\x1b[2J", "\u2028", "\ufeff", "9" * 5000,
     "[" * 400]
)  # fmt: skip
WORDS = st.lists(TOKENS | TEXT | st.integers().map(str), max_size=30).map("".join) | st.binary(max_size=99)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Return dotted keys as the nested mapping of a file."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        node, _, name = key.rpartition(".")
        (tree.setdefault(node, {}) if node else tree)[name] = value
    return tree


def pairs(flat: dict[str, Any]) -> list[Any]:
    return [part for pair in flat.items() for part in pair]


def dumped(flat: dict[str, Any]) -> str:
    return yaml.safe_dump(nested(flat), allow_unicode=True)


YAML = WORDS | st.dictionaries(st.sampled_from(KEYS), JSON | TEXT, max_size=4).map(dumped)


@FAST
@given(st.lists(LAYER, min_size=1, max_size=4), LAYER)
def test_a_value_comes_from_the_last_layer_that_has_it(layers, overrides):
    with folder() as here:
        for number, layer in enumerate(layers):
            base = {"_BASE_": f"{number - 1}.yaml"} if number else {}
            write_text(here / f"{number}.yaml", yaml.safe_dump({**base, **nested(layer)}, allow_unicode=True))
        cfg = load_cfg(here / f"{len(layers) - 1}.yaml", pairs(overrides))
    expected = dict(leaves(get_defaults()))
    for layer in [*layers, overrides]:
        expected.update(layer)
    assert dict(leaves(cfg)) == expected
    assert_comes_back(cfg)


def assert_comes_back(cfg: Any) -> None:
    """Write a config and read it again."""
    with folder() as here:
        write_text(here / "a.yaml", dump_yaml(cfg))
        again = load_cfg(here / "a.yaml")
    assert again == cfg
    assert [type(value) for _, value in leaves(again)] == [type(value) for _, value in leaves(cfg)]


@FAST
@given(YAML, st.lists(st.tuples(st.sampled_from(KEYS) | TEXT, JSON | TEXT), max_size=3))
def test_any_text_as_a_config(text, overrides):
    with folder() as here:
        path = bad_files.text(here / "mine.yaml", text)
        found = taken(load_cfg, path, [part for pair in overrides for part in pair])
    if found is not None:
        assert_comes_back(found)
