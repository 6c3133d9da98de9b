"""What several files of this folder share."""

import pytest
import torch
from text_probe import Probe


@pytest.fixture(scope="session", autouse=True)
def exact_int8_products():
    """The reference's product of bytes cuts sums off at 16 bits on processors without VNNI: there it is
    taken in double."""
    worst = torch.full((32, 64), 127, dtype=torch.int8)
    own = torch._int_mm
    if not own(worst, worst.t()).eq(127 * 127 * 64).all():
        torch._int_mm = lambda a, b: (a.double() @ b.double()).int()
    yield
    torch._int_mm = own


@pytest.fixture(scope="module")
def probe():
    probe = Probe()
    yield probe
    probe.close()
