"""Puts this folder on the path, so that tests in any subfolder can import ``small_networks``."""

import signal

import pytest
import torch

# A shell's background job ignores Ctrl-C and hands that on; the tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Keep torch on one thread: the tensors are small, and the threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
