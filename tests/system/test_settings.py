"""The switch of the tensor cores: on while a subspace is steered on a GPU, off while a network is looked at, then as it was."""

import threading
from collections.abc import Iterator

import pytest
import torch

import ntkgp
from ntkgp._system.settings import _Switch, full_precision, tensor_cores
from ntkgp.networks.layers import gaussian
from ntkgp.posterior.choice import cost
from ntkgp.tangent.factors.recording import LayerFactors
from tests.support.cases import by_name

GPU, CPU = torch.device("cuda"), torch.device("cpu")  # the switch can be turned where there is none


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    assert torch.get_float32_matmul_precision() == before
    torch.set_float32_matmul_precision("highest")


def test_on_while_steering_off_while_recording():
    with tensor_cores(GPU):
        assert torch.get_float32_matmul_precision() == "high"
        with full_precision(), full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "highest"
    with full_precision(), tensor_cores(GPU):
        assert torch.get_float32_matmul_precision() == "highest"
    with tensor_cores(CPU):
        assert torch.get_float32_matmul_precision() == "highest"


def test_the_last_thread_to_leave_turns_it_back():
    first, second = threading.Event(), threading.Event()

    def steer() -> None:
        with tensor_cores(GPU):
            first.set()
            second.wait(30)

    thread = threading.Thread(target=steer)
    thread.start()
    first.wait(30)
    with tensor_cores(GPU):
        second.set()
        thread.join()
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "highest"


def test_an_error_turns_it_back():
    with pytest.raises(KeyError), tensor_cores(GPU), full_precision():
        raise KeyError
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_newer_switches_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    """With them set, torch refuses to read the older one."""

    def refuse() -> str:
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", pytest.fail)
    switch = _Switch()
    switch.count(steering=1)
    switch.count(recording=1)
    switch.count(recording=-1)
    switch.count(steering=-1)
    monkeypatch.undo()


def test_factors_computed_anew_while_a_head_is_looked_for_are_not_rounded(monkeypatch: pytest.MonkeyPatch):
    seen, at, case = set(), LayerFactors.at, by_name("float32")

    def watched(self: LayerFactors, *arguments: object, **options: object) -> object:
        seen.add(torch.get_float32_matmul_precision())
        return at(self, *arguments, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(LayerFactors, "at", watched)
    monkeypatch.setattr("ntkgp.posterior.lowrank.head_search.tensor_cores", lambda _: tensor_cores(GPU))
    monkeypatch.setattr("ntkgp.tangent.tangent.Tangent._fits", lambda *_: False)
    monkeypatch.setattr("ntkgp.tangent.tangent.working_bytes", lambda _: 1)
    case.fit(ntkgp.LowRank(rank=2, side="weights"), generator=torch.Generator().manual_seed(0))
    assert seen == {"highest"}


def test_a_dense_factorisation_leaves_room_for_queries(monkeypatch: pytest.MonkeyPatch):
    for free in (16 * 2**30, 139 * 2**30):
        monkeypatch.setattr(cost, "free_bytes", lambda device, free=free: free)
        rows = ntkgp.Exact("kernel").most_rows(GPU)
        assert rows is not None
        assert 8 * rows**2 + cost.ROOM <= free < 8 * (rows + 1) ** 2 + cost.ROOM


def test_weights_are_made_where_tensors_are():
    same = gaussian(3, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(same, torch.randn(3, 2, generator=torch.Generator().manual_seed(0)))
    with torch.device("meta"):
        assert gaussian(3, generator=torch.Generator().manual_seed(0)).device.type == "meta"
        assert gaussian(3, generator=None).device.type == "meta"
