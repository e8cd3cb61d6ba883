"""The command line leaves no handlers behind."""

import pytest

from tta_cattan.bench.run.log import reset_logging


@pytest.fixture(autouse=True)
def _clean_logger():
    yield
    reset_logging()
