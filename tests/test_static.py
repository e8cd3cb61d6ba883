"""The source is in order: linted, formatted and type-checked."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


COMMANDS = (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_source_passes(command, tmp_path):
    if importlib.util.find_spec(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed: it comes with the extra [test]")
    cache = ["--cache-dir", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", *command, *cache], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
