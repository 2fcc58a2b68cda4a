"""What a file holds: plain tensors of every dtype and stride, and a header in JSON."""

import gc
import json
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import ntkgp
from ntkgp.storage import file as storage_file
from ntkgp.storage.state import State
from tests.support.cases import by_name
from tests.support.files import assert_same_bits, fitted
from tests.support.helpers import seeded

# The shape checker of these tests draws random numbers of its own; and it is slow with functions inside of functions.
pytestmark = pytest.mark.usefixtures("unchecked")


def test_transposed_tensors_come_back_transposed(path: Path):
    """Products with a transposed matrix round in another way, which shows from some size on."""
    x = torch.randn(200, 3, generator=seeded())
    net, query = ntkgp.mlp(3, width=64, generator=seeded()), torch.randn(70, 3, generator=seeded(1))
    posterior = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1)
    posterior.save(path)
    assert_same_bits(posterior, ntkgp.load(path, net), query)
    state = State.of(
        a=torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1), b=torch.arange(9.0).view(3, 3)[:, :1], c=torch.ones(3, 0)
    )
    storage_file.write(path, "any", state)
    _, found = storage_file.read(path, torch.device("cpu"))
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in state.tensors.items())
    assert found.tensors["a"].stride() == state.tensors["a"].stride()


def test_tensors_that_share_memory(path: Path):
    a = torch.arange(6.0)
    storage_file.write(path, "any", State.of(a=a, b=a.view(2, 3), c=a[:2]))
    assert torch.equal(storage_file.read(path, torch.device("cpu"))[1].tensors["b"], a.view(2, 3))


def test_the_file_is_plain(path: Path):
    posterior = fitted(by_name("float32"))
    posterior.save(path)
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["ntkgp"])
        assert {"x", "residual", "noise_std", "factor", "alpha"} < set(file.keys())
    assert about["format"] == storage_file.FORMAT
    assert about["kind"] == "exact"
    assert about["versions"] == {"ntkgp": ntkgp.__version__, "torch": torch.__version__}
    assert about["facts"]["user_dtype"] == "float32"
    assert about["facts"]["vector_output"] is True
    assert "NaN" not in json.dumps(about)


def test_every_dtype_comes_back(path: Path):
    """bfloat16, too, which NumPy does not know."""
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in dtypes}
    tensors |= {"a number": torch.tensor(2.5), "nothing": torch.zeros(0, 3)}
    storage_file.write(path, "some", State(tensors, {}))
    _, state = storage_file.read(path, torch.device("cpu"))
    assert state.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert state.tensors[name].dtype == tensor.dtype
        assert torch.equal(state.tensors[name], tensor)


def test_reading_leaves_no_memory_behind(path: Path):
    """safetensors keeps some 60 bytes of every tensor that it makes for torch."""
    storage_file.write(path, "some", State({f"{k}": torch.zeros(300 + k, 2) for k in range(20)}, {}))

    def read(times: int) -> int:
        for _ in range(times):
            storage_file.read(path, torch.device("cpu"))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = read(20)
        assert (read(100) - before) / (100 * 20) < 20
    finally:
        tracemalloc.stop()
