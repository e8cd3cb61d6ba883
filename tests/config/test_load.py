"""Files, bases and overrides, and what is said when they are wrong."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tta_cattan.config import cfg as defaults
from tta_cattan.config import dump_yaml, get_defaults, load_cfg, to_dict
from tta_cattan.util.errors import UserError


def write(folder: Path, name: str, text: str) -> Path:
    """Write a config file and return its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def refused(*parts: str, path: Path | None = None, overrides: tuple = ()) -> None:
    """Assert that loading fails with one line that holds all of ``parts``."""
    with pytest.raises(UserError) as error:
        load_cfg(path, overrides)
    for part in parts:
        assert part in str(error.value)


def test_defaults_are_frozen_and_copies_are_not():
    with pytest.raises(AttributeError):
        defaults.OPTIM.LR = 1.0
    other = get_defaults()
    other.OPTIM.LR = 1.0
    other.SEEDS.append(7)
    assert defaults.OPTIM.LR == 1e-3
    assert defaults.SEEDS == []


def test_without_a_file_the_defaults_are_loaded_and_frozen():
    cfg = load_cfg(None)
    assert cfg == defaults
    assert cfg is not defaults
    with pytest.raises(AttributeError):
        cfg.CATTAN.D = 3


def test_a_fresh_import_of_the_package_is_without_torch():
    code = "import sys, tta_cattan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_defaults_are_frozen():
    assert defaults.is_frozen()


def test_the_defaults_are_those_of_the_method():
    cfg = load_cfg(None, ["MODEL.ADAPTATION", "cattan_plus"])
    assert (cfg.CLASSES.USE, cfg.OPTIM.LR, cfg.CATTAN_PLUS.SLOTS) == (True, 1e-4, 8)
    assert load_cfg(None, ["MODEL.ADAPTATION", "CATTAN"]).OPTIM.LR == 1e-4
    assert load_cfg(None, ["MODEL.ADAPTATION", "cattan_plus", "BN.STATISTICS", "batch"]).BN.STATISTICS == "batch"


def test_a_file_changes_only_what_it_names(tmp_path):
    cfg = load_cfg(write(tmp_path, "a.yaml", "CATTAN:\n  D: 256\nDESC: Café\n"))
    expected = get_defaults()
    expected.CATTAN.D = 256
    expected.DESC = "Café"
    assert cfg == expected


def test_overrides_win_over_the_file_and_the_last_one_wins(tmp_path):
    path = write(tmp_path, "a.yaml", "CATTAN: {D: 256, DELTA: 0.2}\n")
    cfg = load_cfg(path, ["CATTAN.D", "64", "CATTAN.D", 32])
    assert (cfg.CATTAN.D, cfg.CATTAN.DELTA) == (32, 0.2)


@pytest.mark.parametrize("text", ["", "# nothing\n", "OPTIM:\n  # LR: 1\n"])
def test_a_file_with_everything_commented_out_changes_nothing(tmp_path, text):
    assert load_cfg(write(tmp_path, "a.yaml", text)) == defaults


def test_an_inherited_value_is_overridden_key_by_key(tmp_path):
    write(tmp_path, "base.yaml", "OPTIM: {LR: 1e-4, STEPS: 3}\nDESC: base\n")
    cfg = load_cfg(write(tmp_path, "sub/a.yaml", "_BASE_: ../base.yaml\nOPTIM: {STEPS: 2}\n"))
    assert (cfg.OPTIM.LR, cfg.OPTIM.STEPS, cfg.DESC) == (1e-4, 2, "base")
    assert "_BASE_" not in cfg


def test_of_several_bases_the_later_wins_and_all_may_share_one(tmp_path):
    write(tmp_path, "root.yaml", "RNG_SEED: 5\nDESC: root\n")
    write(tmp_path, "a.yaml", "_BASE_: root.yaml\nDESC: a\nCATTAN: {D: 1}\n")
    write(tmp_path, "b.yaml", "DESC: b\n")
    cfg = load_cfg(write(tmp_path, "c.yaml", "_BASE_: [a.yaml, b.yaml]\n"))
    assert (cfg.RNG_SEED, cfg.DESC, cfg.CATTAN.D) == (5, "b", 1)
    write(tmp_path, "b.yaml", "_BASE_: root.yaml\n")
    assert load_cfg(tmp_path / "c.yaml").DESC == "root"


def test_a_list_replaces_the_inherited_one(tmp_path):
    write(tmp_path, "base.yaml", "SEEDS: [1, 2, 3]\n")
    assert load_cfg(write(tmp_path, "a.yaml", "_BASE_: base.yaml\nSEEDS: [9]\n")).SEEDS == [9]


def test_a_circle_of_bases_is_shown(tmp_path):
    a = write(tmp_path, "a.yaml", "_BASE_: b.yaml\n")
    b = write(tmp_path, "b.yaml", "_BASE_: sub/../a.yaml\n")
    (tmp_path / "sub").mkdir()
    refused(f"{a} -> {b} -> {tmp_path}/sub/../a.yaml", path=a)
    refused(path=write(tmp_path, "self.yaml", "_BASE_: self.yaml\n"))


def test_a_missing_base_names_both_files(tmp_path):
    path = write(tmp_path, "a.yaml", "_BASE_: gone.yaml\n")
    refused(str(path), str(tmp_path / "gone.yaml"), path=path)


@pytest.mark.parametrize("base", ["5", "", "{a: b}", "[x.yaml, 1]", "''"])
def test_a_base_that_is_no_path_is_refused(tmp_path, base):
    refused("_BASE_", "path or a list of paths", path=write(tmp_path, "a.yaml", f"_BASE_: {base}\n"))


def test_an_error_in_a_base_names_the_base(tmp_path):
    base = write(tmp_path, "base.yaml", "CATTAN: {LAMDA_CB: 1}\n")
    refused(str(base), "CATTAN.LAMDA_CB", path=write(tmp_path, "a.yaml", "_BASE_: base.yaml\n"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("DESC: a\nDESC: b\n", "line 2"),
        ("OPTIM:\n  LR: 1.0\n  WD: 0.0\n  LR: 2.0\n", "line 4"),
        ("DESC: a\nOPTIM: [1, 2\nSEEDS: ]\n", "line 3"),
        ("DESC: a\n---\nDESC: b\n", "line 2"),
        ("DESC: a\nSAVE_DIR: !!python/object/apply:os.getcwd []\n", "line 2"),
    ],
)
def test_broken_yaml_is_refused_with_its_line(tmp_path, text, line):
    path = write(tmp_path, "a.yaml", text)
    refused(f"{path}, {line}:", path=path)


@pytest.mark.parametrize("text", ["- a\n- b\n", "hello\n", "5\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text):
    path = write(tmp_path, "a.yaml", text)
    refused(str(path), "top level", path=path)


def test_bytes_that_are_no_text_and_impossible_dates_are_refused(tmp_path):
    refused("c.yaml", path=write(tmp_path, "c.yaml", "DESC: a\x07\n"))
    path = tmp_path / "a.yaml"
    path.write_bytes(b"DESC: \xff\xfe\n")
    refused(str(path), path=path)
    refused("b.yaml", path=write(tmp_path, "b.yaml", "LOG_TIME: 2024-13-45\n"))


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    path = write(tmp_path, "a.yaml", "DESC: a\n")

    def denied(*_: object, **__: object) -> str:
        raise PermissionError("denied")

    monkeypatch.setattr(Path, "read_text", denied)
    refused(f"{path}: cannot be read", "denied", path=path)


@pytest.mark.parametrize(
    ("key", "suggested"),
    [
        ("CATTAN.LAMDA_CB", "'CATTAN.LAMBDA_CB'?"),
        ("TENTPLUS.LAMBDA_CB", "'TENT_PLUS.LAMBDA_CB'?"),
        ("LAMBDA_CB", "'TENT_PLUS.LAMBDA_CB' or 'CATTAN.LAMBDA_CB' or 'CATTAN_PLUS.LAMBDA_CB'?"),
        ("OPTIM.BATCH_SIZE", "'TEST.BATCH_SIZE'?"),
        ("cattan.lambda_cb", "'CATTAN.LAMBDA_CB'?"),
        ("optim.LR", "'OPTIM.LR'?"),
        ("Seeds", "'SEEDS'?"),
        ("CATAN", "'CATTAN'?"),
        ("OPTIM.LR.X", "'OPTIM.LR'?"),
    ],
)
def test_an_unknown_override_suggests_the_nearest_key(key, suggested):
    refused(f"unknown key '{key}'", f"Did you mean {suggested}", overrides=(key, "1"))


def test_aliases_that_stand_for_little_are_read(tmp_path):
    path = write(tmp_path, "a.yaml", "CATTAN_FORWARD: &a {SLOTS: 5}\nCATTAN_PLUS: *a\nSEEDS: &s [1, 2]\n")
    cfg = load_cfg(path)
    assert cfg.CATTAN_FORWARD.SLOTS == cfg.CATTAN_PLUS.SLOTS == 5 and cfg.SEEDS == [1, 2]


def test_a_key_like_no_other_gets_no_suggestion():
    with pytest.raises(UserError, match=r"unknown key 'ZZZZ'\.$"):
        load_cfg(None, ["ZZZZ", 1])


@pytest.mark.parametrize(
    ("text", "key", "suggested"),
    [
        ("CATTAN: {LAMDA_CB: 1}\n", "CATTAN.LAMDA_CB", "CATTAN.LAMBDA_CB"),
        ("LAMBDA_CB: 1\n", "LAMBDA_CB", "CATTAN.LAMBDA_CB"),
        ("Optim: {LR: 1}\n", "Optim", "OPTIM"),
        ("OPTIM: {_BASE_: x.yaml}\n", "OPTIM._BASE_", ""),
        ("5: x\n", "5", ""),
    ],
)
def test_an_unknown_key_in_a_file_names_the_file_and_the_nearest_key(tmp_path, text, key, suggested):
    path = write(tmp_path, "a.yaml", text)
    refused(str(path), f"unknown key '{key}'", suggested, path=path)


def test_a_dotted_key_in_a_file_is_told_how_to_nest(tmp_path):
    refused("CATTAN: {D: ...}", path=write(tmp_path, "a.yaml", "CATTAN.D: 5\n"))


def test_a_value_for_a_node_and_a_node_for_a_value_are_refused(tmp_path):
    refused("OPTIM = 5", "OPTIM.LR", path=write(tmp_path, "a.yaml", "OPTIM: 5\n"))
    refused("SHOT = '5'", "SHOT.LAMBDA_PL", overrides=("SHOT", "5"))
    refused("DESC = {'LR': 1}", path=write(tmp_path, "b.yaml", "DESC: {LR: 1}\n"))


@pytest.mark.parametrize("overrides", [("CATTAN.D",), ("CATTAN.D", 1, "SEEDS"), "CATTAN.D 5"])
def test_overrides_that_are_no_pairs_are_refused(overrides):
    with pytest.raises(UserError, match=re.escape(repr(overrides))):
        load_cfg(None, overrides)


def test_a_range_error_names_the_file_it_stands_in(tmp_path):
    path = write(tmp_path, "a.yaml", "OPTIM: {LR: -1}\n")
    refused(f"{path}: OPTIM.LR = -1.0: must be >= 0", path=path)


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
