"""What several files of this folder share."""

import pytest
from text_probe import Probe


@pytest.fixture(scope="module")
def probe():
    probe = Probe()
    yield probe
    probe.close()
