"""Fingerprints that move with their inputs, and the file that says what a run was."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from tta_cattan.bench.results.identity import fingerprint, git_revision, machine, versions, write_run_file
from tta_cattan.util.errors import UserError

PARTS = {"config": {"OPTIM": {"LR": 1e-4, "STEPS": 1}, "SEEDS": [0, 1]}, "model": "ab", "none": None, "yes": True}


def test_fingerprint_is_the_same_for_ever():
    # From sha256sum over {"a":[1,"x"],"b":0.1}: the results of older runs must stay findable.
    assert fingerprint({"b": 0.1, "a": [1, "x"]}) == "e5c3d418771266de"


def test_fingerprint_ignores_order_and_tuples():
    turned = {
        "yes": True,
        "none": None,
        "model": "ab",
        "config": {"SEEDS": (0, 1), "OPTIM": {"STEPS": 1, "LR": 0.0001}},
    }
    assert fingerprint(turned) == fingerprint(PARTS)
    assert len(fingerprint(PARTS)) == 16 and int(fingerprint(PARTS), 16) >= 0


@pytest.mark.parametrize(
    "change",
    [
        {"model": "ac"},
        {"yes": False},
        {"yes": 1.0},
        {"none": "None"},
        {"new": None},
        {"config": {"OPTIM": {"LR": 1e-4 + 1e-19, "STEPS": 1}, "SEEDS": [0, 1]}},
        {"config": {"OPTIM": {"LR": 1e-4, "STEPS": 1}, "SEEDS": [1, 0]}},
    ],
)
def test_fingerprint_moves_with_every_input(change):
    assert fingerprint({**PARTS, **change}) != fingerprint(PARTS)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (float("nan"), "fingerprint cannot be stored.*float"),
        ({1, 2}, "type set"),
        ([0, torch.zeros(1)], "type Tensor"),
        (object(), "type object"),
    ],
)
def test_fingerprint_refuses_what_json_cannot_hold(value, named):
    with pytest.raises(UserError, match=named):
        fingerprint({"a": {"b": value}})


def test_versions_name_what_is_there_and_what_is_not(monkeypatch):
    found = versions()
    assert found["torch"] == torch.__version__.split("+")[0] or found["torch"] == torch.__version__
    assert found["python"] == sys.version.split()[0]
    monkeypatch.setattr("tta_cattan.bench.results.identity._DISTRIBUTIONS", ("no-such-distribution",))
    assert versions()["no-such-distribution"] == "absent"


def test_machine_gives_the_device_and_threads():
    found = machine("NVIDIA Z")
    assert found["device"] == "NVIDIA Z" and found["torch_threads"] == torch.get_num_threads()
    assert found["processor"] and found["platform"]


def test_git_revision(tmp_path, monkeypatch):
    assert git_revision(tmp_path) is None
    assert git_revision(tmp_path / "nowhere") is None
    repository = tmp_path / "repository; echo no shell"
    repository.mkdir()

    def git(*arguments: str) -> str:
        settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null"]
        done = subprocess.run(
            ["git", *settings, *arguments], cwd=repository, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    (repository / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    git("tag", "v1")
    assert git_revision(repository) == git("rev-parse", "HEAD")
    (repository / "file").write_text("2")
    commit = git("rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "of a hook"))
    assert git_revision(repository) == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "")
    assert git_revision(repository) is None


def test_run_file_holds_the_description(tmp_path):
    description = {"config": PARTS, "versions": versions(), "machine": machine(), "extra": {"seed": 1}}
    path = write_run_file(tmp_path / "run", description)
    assert path == tmp_path / "run" / "run.json" and list(path.parent.iterdir()) == [path]
    assert json.loads(path.read_text()) == description


def test_run_file_refuses_without_harming_the_old_one(tmp_path):
    path = write_run_file(tmp_path, {"a": 1})
    with pytest.raises(UserError, match=r"run.json cannot be stored"):
        write_run_file(tmp_path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write.*run.json"):
        write_run_file(tmp_path / "file", {"a": 1})
