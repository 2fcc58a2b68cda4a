"""The mean alone: the same as with variances, for all three kinds, and without their work."""

from typing import Any

import pytest
import torch

import ntkgp
from ntkgp.linalg.bracket import Bracket
from ntkgp.tangent.tangent import Tangent
from tests.support.cases import CASES, Case, by_name, every, reference
from tests.support.oracle import error

ASKED: dict[str, Any] = {
    "exact": ntkgp.Exact(),
    "low rank": ntkgp.LowRank(rank=2, draws=2, solver=ntkgp.CGLS(tol=1e-10, max_iterations=5000)),
    "trained": ntkgp.TrainedNetworks(rank=1, trainer=ntkgp.AcceleratedGD(max_steps=3)),
}
each_method = pytest.mark.parametrize("method", ASKED)


@pytest.mark.usefixtures("types_of_typical_cases")
@pytest.mark.parametrize("method", ["exact", "low rank"])
@every([case for case in CASES if case.dtype == torch.float64 and "tiny" not in case.name])
def test_it_is_that_of_the_oracle(case: Case, method: str):
    mean = case.fit(ASKED[method], generator=torch.Generator().manual_seed(0)).mean(case.query)
    assert error(mean.flatten(), reference(case).mean) <= 1e-7


@each_method
@pytest.mark.parametrize("name", ["paper mlp", "two outputs", "float32", "noise per output"])
@pytest.mark.filterwarnings("ignore::ntkgp.NumericalWarning")  # three steps of training are not enough
def test_it_is_that_of_predict(name: str, method: str):
    case = by_name(name)
    posterior = case.fit(ASKED[method], generator=torch.Generator().manual_seed(0))
    whole, alone = posterior.predict(case.query).mean, posterior.mean(case.query)
    assert (alone.shape, alone.dtype) == (whole.shape, whole.dtype)
    torch.testing.assert_close(alone, whole, rtol=1e-5 if case.dtype == torch.float32 else 1e-9, atol=1e-6)
    assert posterior.problem.data.points == len(case.x)


@each_method
@pytest.mark.filterwarnings("ignore::ntkgp.NumericalWarning")
def test_it_does_no_work_for_variances(method: str, monkeypatch: pytest.MonkeyPatch):
    case = by_name("paper mlp")
    posterior = case.fit(ASKED[method], generator=torch.Generator().manual_seed(0))

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("not for the mean alone")

    monkeypatch.setattr(torch.linalg, "solve_triangular", never)
    monkeypatch.setattr(Bracket, "lower", never)
    if method == "trained":
        monkeypatch.setattr(Tangent, "at", never)
    with pytest.raises(AssertionError, match="not for the mean"):
        posterior.predict(case.query)
    assert bool(torch.isfinite(posterior.mean(case.query)).all())


@each_method
@pytest.mark.filterwarnings("ignore::ntkgp.NumericalWarning")
def test_it_is_differentiable(method: str):
    case = by_name("paper mlp")
    posterior = case.fit(ASKED[method], generator=torch.Generator().manual_seed(0))
    slopes = []
    for ask in (posterior.mean, lambda x: posterior.predict(x).mean):
        x = case.query.clone().requires_grad_()
        slopes.append(torch.autograd.grad(ask(x).sum(), x)[0])
    torch.testing.assert_close(*slopes, rtol=1e-6, atol=1e-9)
