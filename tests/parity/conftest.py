"""What several files of this folder share."""

import pytest
import torch

from converting import TRAINED, run_fsdp2
from hub_server import Hub
from running import base_flags, run_strata
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


@pytest.fixture(scope="session", autouse=True)
def exact_vector_math():
    """MKL's first cosine by two threads at once may be 1.5e-4 off: the first is by one."""
    torch.cos(torch.ones(1))


@pytest.fixture(scope="module")
def probe():
    probe = Probe()
    yield probe
    probe.close()


@pytest.fixture(scope="session")
def saved_run(inputs, tmp_path_factory):
    """A run of three ranks with checkpoints of its steps 2 and 4."""
    return run_strata(base_flags(inputs.model("odd"), inputs.data("messages"),
                                 tmp_path_factory.mktemp("saved_run"), **TRAINED), 3)


@pytest.fixture(scope="session")
def fsdp2(inputs, tmp_path_factory):
    """What accelerate saves of an FSDP2 run on two ranks."""
    folder = tmp_path_factory.mktemp("fsdp2")
    run_fsdp2(inputs.model("odd"), folder)
    return folder


@pytest.fixture(scope="module")
def one_thread():
    """The mean of the reference's scales depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def hub():
    """A Hub with the data set org/set, whose large files are on another host."""
    hub, cdn = Hub(), Hub()
    hub.cdn = cdn
    yield hub
    for server in (hub, cdn):
        server.shutdown()
        server.server_close()


@pytest.fixture
def model_hub(hub, inputs):
    """The same with the model org/model."""
    hub.model = {p.name: p.read_bytes() for p in inputs.model("plain").iterdir() if p.is_file()}
    hub.model["pytorch_model.bin"] = b"not wanted"
    return hub
