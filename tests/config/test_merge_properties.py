"""Merging and writing, for configurations drawn at random."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tta_cattan.config import cfg as defaults
from tta_cattan.config import dump_yaml, get_defaults, leaves, load_cfg, to_dict

FAST = settings(derandomize=True, max_examples=25, deadline=None, database=None)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = {
    "OPTIM.LR": st.floats(0, allow_infinity=False),
    "OPTIM.STEPS": st.integers(1, 10**6),
    "MODEL.EPISODIC": st.booleans(),
    "MODEL.CKPT_PATH": TEXT,
    "CATTAN.D": st.integers(0, 10**6),
    "CATTAN.CONFIDENCE": st.sampled_from(["hlr", "slr", "entropy"]),
    "CORRUPTION.SEVERITY": st.lists(st.integers(0, 5), unique=True, min_size=1),
    "SEEDS": st.lists(st.integers(0, 2**32 - 1), unique=True, max_size=4),
    "DESC": TEXT,
}
LAYER = st.fixed_dictionaries({}, optional=VALUES)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Return dotted keys as the nested mapping of a file."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        node, _, name = key.rpartition(".")
        (tree.setdefault(node, {}) if node else tree)[name] = value
    return tree


@FAST
@given(st.lists(LAYER, min_size=1, max_size=4), LAYER)
def test_a_value_comes_from_the_last_layer_that_has_it(layers, overrides):
    with tempfile.TemporaryDirectory() as folder:
        for number, layer in enumerate(layers):
            base = {"_BASE_": f"{number - 1}.yaml"} if number else {}
            text = yaml.safe_dump({**base, **nested(layer)}, allow_unicode=True)
            (Path(folder) / f"{number}.yaml").write_text(text, encoding="utf-8")
        last = Path(folder) / f"{len(layers) - 1}.yaml"
        cfg = load_cfg(last, [item for pair in overrides.items() for item in pair])
    expected = dict(leaves(get_defaults()))
    for layer in [*layers, overrides]:
        expected.update(layer)
    assert dict(leaves(cfg)) == expected


@FAST
@given(LAYER)
def test_what_is_written_is_read_back_exactly(layer):
    cfg = load_cfg(None, [item for pair in layer.items() for item in pair])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.yaml"
        path.write_bytes(dump_yaml(cfg).encode())
        again = load_cfg(path)
    assert again == cfg
    assert [type(value) for _, value in leaves(again)] == [type(value) for _, value in leaves(cfg)]


def test_a_dictionary_is_plain_ordered_and_apart():
    found = to_dict(defaults)
    assert found == defaults
    assert list(found) == list(defaults)
    assert {type(value) for value in found.values()} == {dict, str, bool, int, list}
    before = copy.deepcopy(found)
    found["OPTIM"]["LR"] = 9.0
    found["CORRUPTION"]["TYPE"].clear()
    found["SEEDS"].append(1)
    assert to_dict(defaults) == before


def test_a_tuple_is_written_as_a_list_and_the_order_is_kept():
    cfg = get_defaults()
    cfg.SEEDS = (1, 2)
    assert to_dict(cfg)["SEEDS"] == [1, 2]
    written = yaml.safe_load(dump_yaml(cfg))
    assert written["SEEDS"] == [1, 2]
    assert list(written["OPTIM"]) == list(defaults.OPTIM)
