"""Puts this folder on the path, so that tests in any subfolder can import ``small_networks``."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Keep torch on one thread: the tensors are small, and the threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
