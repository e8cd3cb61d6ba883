"""Recognising a host, its version, and the config keys that it gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yacs.config
from yacs.config import CfgNode

import tta_cattan
from tta_cattan.host.launcher import main
from tta_cattan.host.methods import declare, split_overrides, translate
from tta_cattan.host.recognise import HOSTS, recognise, version
from tta_cattan.util.errors import UserError

SCRIPTS = {
    "tent/cifar10c.py": "TENT",
    "cotta/cifar10c.py": "CoTTA",
    "benchmark_tta/test-time.py": "Benchmark-TTA",
    "registry/test_time.py": "test-time-adaptation",
    "ttab/run_exp.py": "TTAB",
}


@pytest.mark.parametrize(("script", "name"), SCRIPTS.items())
def test_each_host_is_recognised(host, script, name):
    folder, _, rest = script.partition("/")
    assert recognise(host(folder) / rest).name == name


def test_unknown_host_is_refused_with_the_known_ones_and_the_recipe(tmp_path):
    script = tmp_path / "main.py"
    script.write_text("print('a loop of my own')\n")
    with pytest.raises(UserError) as error:
        recognise(script)
    assert all(host.name in str(error.value) for host in HOSTS)
    assert "setup_model(" in str(error.value)


def test_missing_script_is_named(tmp_path):
    with pytest.raises(UserError, match="there is no such script"):
        main([str(tmp_path / "cifar10c.py")])


def test_version_by_git(host):
    folder = host("tent")
    script = folder / "cifar10c.py"
    assert version(recognise(script), script) == "not tracked by git; this package was tried with e9e926a"
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "host"]):
        subprocess.run([*git, *command], check=True)
    assert version(recognise(script), script).startswith("commit ")


def test_command_prints_one_line_for_a_mistake(host):
    folder = host("tent")
    command = [sys.executable, "-m", "tta_cattan.host", "--cpu", "cifar10c.py", "--cfg", "cfgs/tent.yaml"]
    command += ["MODEL.ADAPTATION", "cattan"]
    environment = {**os.environ, "PYTHONPATH": str(Path(tta_cattan.__file__).parents[1])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "tta-cattan: TENT in " in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: CATTAn needs a source subspace")


def test_declare_adds_what_is_missing_and_changes_nothing(host):
    cfg = CfgNode({"MODEL": {"EPISODIC": True}, "SHOT": {"CLS_PAR": 0.5}, "OPTIM": {"LR": 0.5}})
    cfg.freeze()
    declare(cfg)
    declare(cfg)
    assert cfg.is_frozen()
    assert (cfg.MODEL.EPISODIC, cfg.OPTIM.LR, cfg.SHOT.CLS_PAR) == (True, 0.5, 0.5)
    assert (cfg.SHOT.LAMBDA_PL, cfg.CATTAN.D, cfg.MODEL.CLASSIFIER) == (0.3, 0, "")


def test_integers_are_floats_in_our_keys_only(host):
    cfg = CfgNode({"OWN": {"RATE": 1.0}})
    declare(cfg)
    cfg.merge_from_list(["CATTAN.LAMBDA_LR", "1"])
    cfg.merge_from_other_cfg(CfgNode({"IP": {"LAMBDA_LR": 2}}))
    assert isinstance(cfg.CATTAN.LAMBDA_LR, float)
    assert isinstance(cfg.IP.LAMBDA_LR, float)
    with pytest.raises(ValueError, match="Type mismatch"):
        cfg.merge_from_list(["OWN.RATE", "1"])
    with pytest.raises(ValueError, match="Type mismatch"):
        cfg.merge_from_list(["CATTAN.D", "0.5"])


def test_yacs_still_has_what_we_extend():
    assert callable(yacs.config._check_and_coerce_cfg_value_type)


def test_translation_checks_ranges(host):
    cfg = CfgNode({"MODEL": {"ADAPTATION": "cattan"}})
    declare(cfg)
    cfg.merge_from_list(["CATTAN.CENTERING", "middle"])
    with pytest.raises(UserError, match=r"CATTAN.CENTERING = 'middle'"):
        translate(cfg, "cattan")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--lr", "1", "CATTAN.D", "6"], (["--lr", "1"], ["CATTAN.D", "6"])),
        (["--name", "ABC"], (["--name", "ABC"], [])),
        (["--name=ABC", "DESC", "x"], (["--name=ABC"], ["DESC", "x"])),
        ([], ([], [])),
    ],
)
def test_pairs_are_split_from_options(arguments, expected):
    assert split_overrides(arguments) == expected
