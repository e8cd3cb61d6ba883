"""Shared fixtures; the folder is on the path, so that tests anywhere below can import the helpers beside this file."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Packages installed without bytecode are compiled once, not by every process that a test starts.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell's background job ignores Ctrl-C, and so do its children; the tests need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Minutes each: first, so that no core waits for them at the end.
SLOW = ("test_ray_launcher", "test_docs", "test_static", "test_point_clouds")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    items.sort(key=lambda item: item.path.stem not in SLOW)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Keep torch on one thread: the tensors are small, and the threads would only wait for each other."""
    import torch  # here: the process that hands out the tests needs none

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def clean_logger():
    """Remove the log handlers that a command leaves behind."""
    yield
    if log := sys.modules.get("tta_cattan.bench.run.log"):
        log.reset_logging()


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """Return a function that finds real data by name in $TTA_CATTAN_DATA, and skips the test if it is missing."""
    folder = Path(os.environ.get("TTA_CATTAN_DATA") or Path(__file__).parents[2] / "shared" / "data")

    def find(name: str) -> Path:
        if not (folder / name).exists():
            pytest.skip(f"real data {name!r} is missing in {folder}: set TTA_CATTAN_DATA to a folder that holds it")
        return folder / name

    return find
