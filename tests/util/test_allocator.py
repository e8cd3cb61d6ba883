"""Freed memory stays with the process where glibc can do that, and where nobody has decided otherwise."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tta_cattan.util.memory import keep_freed_memory

# Page faults of the second use of 64 MB: none where they were kept.
PROBE = """
import resource, sys
from tta_cattan.util.memory import keep_freed_memory
print(keep_freed_memory())
def use():
    bytearray(64 * 2**20)[::4096] = b"x" * (64 * 2**8)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def probe(**environment):
    command = [sys.executable, "-c", PROBE]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator here is not glibc's")
def test_the_next_use_asks_the_system_for_nothing():
    kept, faults = probe()
    assert kept == "True" and faults < 1000
    kept, faults = probe(MALLOC_ARENA_MAX="2")
    assert kept == "False" and faults > 10_000, "the user's own choice stays"


def test_another_allocator_is_left_alone(monkeypatch):
    class Other:
        pass

    monkeypatch.setattr("ctypes.CDLL", lambda name: Other())
    assert keep_freed_memory() is False
