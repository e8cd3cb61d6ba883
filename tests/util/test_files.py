"""Files that are whole or not there: what a killed process leaves behind goes away, what a living one needs stays."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tta_cattan.util import files
from tta_cattan.util.errors import UserError
from tta_cattan.util.files import atomic_path, remove_leftovers, write_text

ROOT = Path(__file__).parents[2]
DIES = """
    import os, signal, sys
    from tta_cattan.util.files import atomic_path
    with atomic_path(sys.argv[1]) as temporary:
        temporary.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
    """
WAITS = """
    import sys
    from tta_cattan.util.files import atomic_path
    with atomic_path(sys.argv[1]) as temporary:
        temporary.write_text("the other's")
        print("writing", flush=True)
        sys.stdin.read()
    """


@pytest.fixture(autouse=True)
def _folders_not_seen():
    """Let each test be the first of its process that writes to a folder."""
    remove_leftovers.cache_clear()


def start(code: str, path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_of_a_killed_process_goes_with_the_next_write(tmp_path):
    assert start(DIES, tmp_path / "a.txt").wait(300) == -9
    (left,) = names(tmp_path)
    assert left.startswith(".a.txt.") and left.endswith(".tmp")
    write_text(tmp_path / "b.txt", "whole")
    assert names(tmp_path) == ["b.txt"]


def test_the_file_of_a_living_process_stays(tmp_path):
    process = start(WAITS, tmp_path / "a.txt")
    assert process.stdout.readline() == "writing\n"
    write_text(tmp_path / "a.txt", "ours")
    assert (tmp_path / "a.txt").read_text() == "ours" and len(names(tmp_path)) == 2
    process.communicate()
    assert process.returncode == 0
    assert names(tmp_path) == ["a.txt"] and (tmp_path / "a.txt").read_text() == "the other's"


def test_files_of_others_stay(tmp_path):
    dead = start("", tmp_path)
    dead.wait(300)
    foreign = [".notes.tmp", f".a.txt.00000000-{dead.pid}-abc.tmp", f".a.{files._system()}-x-abc.tmp", "plain.tmp"]
    for name in foreign:
        (tmp_path / name).touch()
    (tmp_path / f".a.txt.{files._system()}-{dead.pid}-abc.tmp").touch()
    write_text(tmp_path / "b.txt", "whole")
    assert names(tmp_path) == sorted([*foreign, "b.txt"])


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")
        raise RuntimeError
    assert names(tmp_path) == ["a.txt"] and (tmp_path / "a.txt").read_text() == "old"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write '.*file/a.txt': .*; a file stands where a folder should be"):
        write_text(tmp_path / "file" / "a.txt", "x")


def test_a_file_is_for_colleagues_to_read(tmp_path):
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "a.txt", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644
