"""A load beside a save of another process gives the posterior before or the one after, and is never told of damage."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ntkgp
from ntkgp.storage import file as storage_file
from tests.support.files import linear
from tests.support.ranks import CONTEXT, serve

SAVES = 400
X = torch.tensor([[0.0], [1.0]], dtype=torch.float64)


def posterior(slope: float) -> ntkgp.posterior.Posterior:
    return ntkgp.fit(linear(1), X, slope * X[:, 0], noise_var=0.1)


def mean(path: Path) -> Tensor:
    return ntkgp.load(path, linear(1)).predict(X).mean


def saving(path: Path, times: int) -> None:
    torch.set_num_threads(1)
    both = [posterior(1.0), posterior(2.0)]
    for k in range(times):
        both[k % 2].save(path)


def test_another_process_saves(path: Path):
    expected = [posterior(slope).predict(X).mean for slope in (1.0, 2.0)]
    posterior(1.0).save(path)
    serve()
    process = CONTEXT.Process(target=saving, args=(path, SAVES), daemon=True)
    process.start()
    while process.exitcode is None:
        found = mean(path)
        assert any(torch.equal(found, one) for one in expected)
    assert process.exitcode == 0


@pytest.mark.parametrize("moment", [1, 2, 3, 4])
def test_a_file_is_replaced_while_it_is_opened(moment: int, path: Path, monkeypatch: pytest.MonkeyPatch):
    """Before any of the first readers is opened, after the others."""
    posterior(1.0).save(path)
    new, opened, calls = path.with_name("new"), storage_file.safe_open, [0]
    posterior(2.0).save(new)

    def replaced(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == moment:
            os.replace(new, path)
        return opened(*arguments, **options)

    monkeypatch.setattr(storage_file, "safe_open", replaced)
    found = mean(path)
    before, after = (posterior(slope).predict(X).mean for slope in (1.0, 2.0))
    assert torch.equal(found, after if moment <= 2 else before)
    assert new.exists() == (moment > 2)
