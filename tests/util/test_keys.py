"""Types: what is taken for a number, a bool, a string and a list, from a file, the command line and Python."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tta_cattan.config import load_cfg
from tta_cattan.util.errors import UserError


def from_file(folder: Path, key: str, text: str) -> object:
    """Return the value of ``key`` after loading ``key: text`` from a file."""
    node, _, name = key.rpartition(".")
    path = folder / "a.yaml"
    path.write_text(f"{node}:\n  {name}: {text}\n" if node else f"{name}: {text}\n")
    cfg = load_cfg(path)
    return cfg[node][name] if node else cfg[name]


def from_override(key: str, value: object) -> object:
    """Return the value of ``key`` after loading it as an override."""
    node, _, name = key.rpartition(".")
    cfg = load_cfg(None, [key, value])
    return cfg[node][name] if node else cfg[name]


ACCEPTED_IN_FILES = [
    ("OPTIM.LR", "1e-3", 1e-3),
    ("CATTAN.LAMBDA_LR", "1", 1.0),
    ("CATTAN.LAMBDA_LR", "'0.5'", 0.5),
    ("CATTAN.EPSILON", "1e6", 1e6),
    ("TEST.BATCH_SIZE", "'64'", 64),
    ("CORRUPTION.NUM_EX", "-1", -1),
    ("MODEL.EPISODIC", "yes", True),
    ("DESC", "'5'", "5"),
    ("DESC", "1e-3", "1e-3"),
    ("SEEDS", "[0, '1']", [0, 1]),
    ("SEEDS", "[]", []),
    ("CORRUPTION.TYPE", "[fog, 'on']", ["fog", "on"]),
]
REFUSED_IN_FILES = [
    ("OPTIM.LR", "true", "a number"),
    ("OPTIM.LR", "fast", "a number"),
    ("OPTIM.LR", "1_0e1", "a number"),
    ("OPTIM.LR", "", "a number"),
    ("OPTIM.LR", "[1.0]", "a number"),
    ("OPTIM.LR", ".nan", "finite"),
    ("OPTIM.LR", ".inf", "finite"),
    ("OPTIM.LR", "inf", "finite"),
    ("OPTIM.LR", "9" * 400, "finite"),
    ("TEST.BATCH_SIZE", "5.5", "an integer"),
    ("TEST.BATCH_SIZE", "5.0", "an integer"),
    ("TEST.BATCH_SIZE", "'5.0'", "an integer"),
    ("TEST.BATCH_SIZE", "true", "an integer"),
    ("MODEL.EPISODIC", "1", "true or false"),
    ("MODEL.EPISODIC", "0", "true or false"),
    ("MODEL.EPISODIC", "'True'", "true or false"),
    ("DESC", "5", "a string"),
    ("DESC", "true", "a string"),
    ("LOG_TIME", "2024-01-01", "a string"),
    ("CORRUPTION.SEVERITY", "5", "a list"),
    ("CORRUPTION.SEVERITY", "'5,4'", "a list"),
    ("CORRUPTION.SEVERITY", "[5, true]", "an integer"),
    ("CORRUPTION.SEVERITY", "[5.0]", "an integer"),
    ("CORRUPTION.TYPE", "[fog, 5]", "a string"),
    ("SEEDS", "[a]", "an integer"),
    ("SEEDS", "[[1]]", "an integer"),
]


@pytest.mark.parametrize(("key", "text", "expected"), ACCEPTED_IN_FILES)
def test_accepted_in_a_file(tmp_path, key, text, expected):
    value = from_file(tmp_path, key, text)
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize(("key", "text", "kind"), REFUSED_IN_FILES)
def test_refused_in_a_file(tmp_path, key, text, kind):
    with pytest.raises(UserError, match=rf"a\.yaml: {key} = .*{kind}"):
        from_file(tmp_path, key, text)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("OPTIM.LR", "1e-3", 1e-3),
        ("OPTIM.LR", "1", 1.0),
        ("OPTIM.LR", 1, 1.0),
        ("OPTIM.LR", np.float32(0.5), 0.5),
        ("OPTIM.LR", Fraction(1, 2), 0.5),
        ("CATTAN.D", "256", 256),
        ("CATTAN.D", np.int64(256), 256),
        ("MODEL.EPISODIC", "True", True),
        ("OPTIM.NESTEROV", "false", False),
        ("OPTIM.NESTEROV", "off", False),
        ("MODEL.EPISODIC", True, True),
        ("DESC", "5", "5"),
        ("DESC", "a,b", "a,b"),
        ("DESC", "[x: y", "[x: y"),
        ("SAVE_DIR", Path("out/x"), "out/x"),
        ("CORRUPTION.SEVERITY", "5", [5]),
        ("CORRUPTION.SEVERITY", 5, [5]),
        ("CORRUPTION.SEVERITY", "5,3", [5, 3]),
        ("CORRUPTION.SEVERITY", "[5, 3]", [5, 3]),
        ("CORRUPTION.SEVERITY", "(5,)", [5]),
        ("CORRUPTION.SEVERITY", (5, "3"), [5, 3]),
        ("SEEDS", "0", [0]),
        ("SEEDS", 0, [0]),
        ("SEEDS", "", []),
        ("SEEDS", "[]", []),
        ("CORRUPTION.TYPE", "fog", ["fog"]),
        ("CORRUPTION.TYPE", "fog, snow,on", ["fog", "snow", "on"]),
        ("CORRUPTION.TYPE", "['fog', \"snow\"]", ["fog", "snow"]),
    ],
)
def test_accepted_as_an_override(key, value, expected):
    found = from_override(key, value)
    assert (found, type(found)) == (expected, type(expected))
    if isinstance(expected, list):
        assert [type(entry) for entry in found] == [type(entry) for entry in expected]


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("OPTIM.LR", "True", "a number"),
        ("OPTIM.LR", True, "a number"),
        ("OPTIM.LR", "__import__('os').getcwd()", "a number"),
        ("OPTIM.LR", "nan", "finite"),
        ("OPTIM.LR", float("inf"), "finite"),
        ("OPTIM.LR", None, "a number"),
        ("CATTAN.D", "5.0", "an integer"),
        ("CATTAN.D", 5.0, "an integer"),
        ("CATTAN.D", "1+1", "an integer"),
        ("CATTAN.D", "9" * 5000, "an integer"),
        ("CATTAN.D", False, "an integer"),
        ("MODEL.EPISODIC", "1", "true or false"),
        ("MODEL.EPISODIC", 1, "true or false"),
        ("MODEL.EPISODIC", "maybe", "true or false"),
        ("DESC", 5, "a string"),
        ("SEEDS", "0,,1", "a list"),
        ("SEEDS", "0,a", "an integer"),
        ("SEEDS", [True], "an integer"),
        ("SEEDS", "a: b", "an integer"),
        ("CORRUPTION.TYPE", [1], "a string"),
    ],
)
def test_refused_as_an_override(key, value, kind):
    with pytest.raises(UserError, match=rf"overrides: {key} = .*{kind}"):
        from_override(key, value)


def test_a_list_that_was_emptied_by_a_base_keeps_the_type_of_its_entries(tmp_path):
    (tmp_path / "base.yaml").write_text("SEEDS: []\n")
    (tmp_path / "a.yaml").write_text("_BASE_: base.yaml\nSEEDS: ['3']\n")
    assert load_cfg(tmp_path / "a.yaml").SEEDS == [3]
