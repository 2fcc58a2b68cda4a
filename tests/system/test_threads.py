"""One thread for each small piece of work."""

import threading

import pytest
import torch

from ntkgp._system.threads import for_each, one_thread


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_two_threads")
def test_the_callers_number_of_threads_comes_back():
    def boom() -> None:
        with one_thread():
            assert torch.get_num_threads() == 1
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        boom()
    assert torch.get_num_threads() == 2
    with one_thread(False):
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("_two_threads")
def test_items_run_beside_each_other_with_one_thread_each():
    both = threading.Barrier(2, timeout=60)  # passes only if two items run at the same time

    def work(k: int) -> tuple[int, int, bool]:
        both.wait()
        return k, torch.get_num_threads(), torch.is_grad_enabled()

    with torch.no_grad():
        assert for_each(work, [0, 1]) == [(0, 1, False), (1, 1, False)]
    assert for_each(work, [0, 1]) == [(0, 1, True), (1, 1, True)]
    with one_thread(), one_thread():  # which holds operations to one thread, not the items
        assert for_each(work, [0, 1]) == [(0, 1, True), (1, 1, True)]
    assert torch.get_num_threads() == 2
    started: list[int] = []
    new = threading.Thread(target=lambda: started.append(torch.get_num_threads()))
    new.start()
    new.join()
    assert started == [2]  # threads of the user that start later are not held to one


@pytest.mark.usefixtures("_two_threads")
def test_an_error_in_an_item_is_raised():
    def work(k: int) -> int:
        return 1 // k

    with pytest.raises(ZeroDivisionError):
        for_each(work, [1, 0, 1])
    assert torch.get_num_threads() == 2
