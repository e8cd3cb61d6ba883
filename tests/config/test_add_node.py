"""Keys that a plug-in declares."""

from __future__ import annotations

import pytest

from tta_cattan.config import (
    add_node,
    at_least,
    cfg,
    check_cfg,
    dump_yaml,
    get_defaults,
    load_cfg,
    one_of,
    within,
)
from tta_cattan.config.checks import CHECKS
from tta_cattan.util.errors import UserError

NODE = {"RST": 0.01, "AUG": 32, "MODE": "a", "LAYERS": (1, 2), "NAMES": [], "DEEP": {"ON": False}}


@pytest.fixture(autouse=True)
def undeclared():
    """Take away what a test has declared."""
    nodes, checks = set(cfg), dict(CHECKS)
    yield
    cfg.defrost()
    for name in set(cfg) - nodes:
        del cfg[name]
    cfg.freeze()
    CHECKS.clear()
    CHECKS.update(checks)


def test_declared_keys_load_like_our_own(tmp_path):
    add_node("COTTA", NODE, {"RST": within(0, 1), "DEEP.ON": one_of(False)})
    path = tmp_path / "a.yaml"
    path.write_text("COTTA:\n  RST: 1\n  NAMES: [x]\n")
    loaded = load_cfg(path, ["COTTA.AUG", "8", "COTTA.LAYERS", "3,4"])
    assert loaded.COTTA == {**NODE, "RST": 1.0, "AUG": 8, "LAYERS": [3, 4], "NAMES": ["x"]}
    assert cfg.COTTA.AUG == get_defaults().COTTA.AUG == 32
    path.write_text(dump_yaml(loaded))
    assert load_cfg(path) == loaded


def test_declared_checks_and_names_are_used():
    add_node("COTTA", NODE, {"RST": within(0, 1)})
    with pytest.raises(UserError, match=r"COTTA\.RST = 2\.0: must be in \[0, 1\]"):
        load_cfg(None, ["COTTA.RST", 2])
    with pytest.raises(UserError, match=r"Did you mean 'COTTA\.RST'"):
        load_cfg(None, ["COTTA.RTS", 2])
    changed = get_defaults()
    changed.COTTA.RST = -1.0
    with pytest.raises(UserError, match=r"COTTA\.RST"):
        check_cfg(changed)


def test_the_defaults_stay_frozen_and_apart_from_what_was_given():
    given = {"LAYERS": [1]}
    add_node("COTTA", given)
    given["LAYERS"].append(2)
    assert cfg.COTTA.LAYERS == [1]
    with pytest.raises(AttributeError):
        cfg.COTTA.LAYERS = [3]


def test_the_same_declaration_again_changes_nothing():
    for _ in range(2):
        add_node("COTTA", NODE, {"RST": within(0, 1)})
    assert cfg.COTTA.RST == 0.01


@pytest.mark.parametrize(
    ("node", "checks"),
    [
        ({"RST": 1.0}, {}),
        ({"RST": 1}, {"RST": at_least(0)}),
        ({"RST": 1.0, "AUG": 1}, {"RST": at_least(0)}),
        ({"RST": 2.0}, {"RST": at_least(0)}),
        ({"RST": 1.0}, {"RST": at_least(1)}),
    ],
)
def test_another_declaration_of_the_same_node_is_refused(node, checks):
    add_node("COTTA", {"RST": 1.0}, {"RST": at_least(0)})
    with pytest.raises(UserError, match="'COTTA' is already declared"):
        add_node("COTTA", node, checks)
    assert cfg.COTTA == {"RST": 1.0}
    assert CHECKS["COTTA.RST"] == at_least(0)


@pytest.mark.parametrize("name", ["CATTAN", "DESC"])
def test_our_own_keys_cannot_be_redeclared(name):
    before = get_defaults()
    with pytest.raises(UserError, match="already declared"):
        add_node(name, {"D": 5})
    assert get_defaults() == before


@pytest.mark.parametrize(
    ("name", "node", "checks", "said"),
    [
        ("cotta", {"RST": 1.0}, {}, "'cotta' must be upper case"),
        ("_BASE_", {"RST": 1.0}, {}, "'_BASE_' must be upper case"),
        ("COTTA", {"rst": 1.0}, {}, "'rst' must be upper case"),
        ("COTTA", {"DEEP": {"on": 1}}, {}, "'on' must be upper case"),
        ("COTTA", {"RST": None}, {}, "COTTA.RST = None: a default must be"),
        ("COTTA", {"RST": [1, "a"]}, {}, "COTTA.RST = .*: a default must be"),
        ("COTTA", {"RST": 1.0}, {"RTS": at_least(0)}, "undeclared key 'COTTA.RTS'. Did you mean 'COTTA.RST'"),
        ("COTTA", {"RST": -1.0}, {"RST": at_least(0)}, "COTTA.RST = -1.0: must be >= 0"),
        ("COTTA", {"RST": float("nan")}, {}, "COTTA.RST = nan: must be finite"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(name, node, checks, said):
    with pytest.raises(UserError, match=said):
        add_node(name, node, checks)
    assert name not in cfg
