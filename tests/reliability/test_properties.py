"""What holds for every network, data set and noise: hypothesis looks for one where it does not.

`NTKGP_LONG=1` tries some hundred times as many examples and keeps the count.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ntkgp
from tests.support import oracle
from tests.support.helpers import SURE
from tests.support.long_form import LONG, recorded

pytestmark = pytest.mark.usefixtures("unchecked")
EXAMPLES = 1400 if LONG else 10
COUNTS: dict[str, int] = {}
ACTIVATIONS = [nn.Tanh, nn.SiLU, nn.ReLU, nn.Softplus, ntkgp.networks.Sine]


@pytest.fixture(autouse=True, scope="module")
def _recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    with recorded("properties", request, lambda: {"examples": sum(COUNTS.values()), "by_property": COUNTS}):
        yield


@dataclass(frozen=True)
class Problem:
    """A random regression problem, in float64."""

    net: nn.Module
    x: Tensor
    y: Tensor
    query: Tensor
    noise_var: float | Tensor
    description: str

    def fit(self, method: Any = None, **changes: Any) -> ntkgp.posterior.Posterior:
        options = {"x": self.x, "y": self.y, "noise_var": self.noise_var, "method": method, **changes}
        generator = torch.Generator().manual_seed(0)
        return ntkgp.fit(self.net, generator=generator, **options)

    @property
    def referee(self) -> oracle.Oracle:
        return oracle.pose(self.net, self.x, self.y, self.query, self.noise_var, 1.0, None)


@st.composite
def problems(draw: st.DrawFn, outputs: int | None = None, one_noise: bool = False) -> Problem:
    """Networks of one or two hidden layers; points spread, crowded, repeated or huge; noise small and large, alike or not."""
    seed = draw(st.integers(0, 2**32 - 1))
    g = torch.Generator().manual_seed(seed)
    N, M, D, width, depth = (draw(st.integers(low, high)) for low, high in ((1, 9), (1, 4), (1, 3), (1, 6), (1, 2)))
    C = draw(st.integers(1, 2)) if outputs is None else outputs
    activation = draw(st.sampled_from(ACTIVATIONS))()
    place = draw(st.sampled_from(["spread", "crowded", "repeated", "large"]))
    bias = draw(st.booleans())
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if draw(st.booleans()):
            net: nn.Module = ntkgp.mlp(D, C, width, depth, activation, generator=g)
        else:
            sizes = [D, *[width] * depth]
            layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b, bias=bias), activation)]
            net = nn.Sequential(*layers, nn.Linear(width, C, bias=bias))
    x = torch.randn(N, D, generator=g, dtype=torch.float64)
    x = {"spread": x, "crowded": x[:1] + 1e-3 * x, "repeated": x[torch.arange(N) // 2], "large": 30 * x}[place]
    y = torch.randn(N, C, generator=g, dtype=torch.float64) * 10.0 ** draw(st.integers(-3, 3))
    query = torch.cat([x[:1], 3 * torch.randn(M, D, generator=g, dtype=torch.float64)])
    noise: float | Tensor = 10.0 ** draw(st.floats(-4, 3))
    if not one_noise and draw(st.booleans()):
        noise = noise * (0.1 + torch.rand(N, C, generator=g, dtype=torch.float64))
    y = y[:, 0] if C == 1 and draw(st.booleans()) else y
    described = f"seed {seed}, N {N}, M {M}, D {D}, width {width}, depth {depth}, C {C}, {activation}, {place}, noise {noise}"
    return Problem(net.double(), x, y, query, noise, described)


def holds(strategy: st.SearchStrategy[Problem], share: float = 1.0) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """For all examples; warnings of the library are errors, as everywhere in these tests."""

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        def counted(problem: Problem, data: st.DataObject) -> None:
            note(problem.description)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
                test(problem, data)
            COUNTS[test.__name__] = COUNTS.get(test.__name__, 0) + 1

        counted.__name__ = test.__name__
        limits = settings(
            max_examples=max(3, int(share * EXAMPLES)), deadline=None, derandomize=not LONG, database=None,
            suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
        return limits(given(strategy, st.data())(counted))

    return decorate


def rounding(problem: Problem) -> Tensor:
    """What the subtraction from the prior variance may lose, at each query."""
    referee = problem.referee
    noise = torch.as_tensor(problem.noise_var, dtype=torch.float64).min()
    condition = 1 + referee.kernel.diagonal().sum() / noise
    return 1e-13 * condition.clamp_max(1e6) * referee.prior.diagonal() + 1e-300


def flat(*parts: Tensor) -> list[Tensor]:
    return [part.detach().double().flatten() for part in parts]


@holds(problems())
def test_the_bracket_holds(problem: Problem, data: st.DataObject):
    """0 ≤ lower ≤ exact ≤ upper ≤ prior, for every method; Exact is exact, means agree."""
    referee, slack = problem.referee, rounding(problem)
    rank = data.draw(st.integers(1, min(problem.y.numel(), sum(p.numel() for p in problem.net.parameters()))))
    tail = data.draw(st.integers(0, 3))
    # The solver measures its error in the norm of its preconditioner, which a head of rank 1 makes small.
    solver = ntkgp.CGLS(tol=1e-9, max_iterations=5000)
    methods = [
        ntkgp.Exact(),
        ntkgp.LowRank(rank=rank, draws=tail, solver=solver, confidence=SURE),
        ntkgp.LowRank(rtol=0.5, solver=solver, confidence=SURE),
    ]
    for method in methods:
        p = problem.fit(method).predict(problem.query)
        mean, variance, lower, upper = flat(p.mean, p.variance, p.lower, p.upper)
        assert bool((lower >= 0).all())
        assert bool((lower <= variance).all())
        assert bool((variance <= upper).all())
        assert bool((lower <= referee.variance + slack).all())
        assert bool((upper >= referee.variance - slack).all())
        assert bool((upper <= referee.prior.diagonal() + slack).all())
        if isinstance(method, ntkgp.Exact):
            assert bool(((variance - referee.variance).abs() <= slack).all())
        spread = referee.variance.clamp_min(0).sqrt() + slack.sqrt()
        size = (referee.residual / referee.noise.sqrt()).norm()
        assert bool(((mean - referee.mean).abs() <= 1e-5 * (1 + size) * spread + 1e-9 * referee.mean.abs()).all())


@holds(problems(), share=0.4)
def test_trained_networks_stay_in_the_bracket(problem: Problem, data: st.DataObject):
    method = ntkgp.TrainedNetworks(rank=1, tail=data.draw(st.integers(0, 2)), trainer=ntkgp.AcceleratedGD(tol=0.5))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*networks stopped after", category=ntkgp.NumericalWarning)
        p = problem.fit(method).predict(problem.query)
    slack = rounding(problem)
    mean, variance, lower, upper = flat(p.mean, p.variance, p.lower, p.upper)
    assert bool(torch.isfinite(mean).all())
    assert bool(((lower >= 0) & (lower <= variance) & (variance <= upper)).all())
    assert bool((lower <= problem.referee.variance + slack).all())
    assert bool((upper >= problem.referee.variance - slack).all())


@holds(problems(one_noise=True))
def test_more_data_never_raises_the_variance(problem: Problem, data: st.DataObject):
    """Point by point, by `fit` and by `update`, which are the same."""
    some = data.draw(st.integers(1, len(problem.x)))
    before = problem.fit(x=problem.x[:some], y=problem.y[:some])
    all_of_it = problem.fit()
    (few,), (many,) = (flat(p.predict(problem.query).variance) for p in (before, all_of_it))
    slack = rounding(problem)
    assert bool((many <= few + slack).all())
    if some < len(problem.x):
        p = before.update(problem.x[some:], problem.y[some:]).predict(problem.query)
        assert bool(((flat(p.variance)[0] - many).abs() <= slack).all())
        spread = 1e-6 * (many.sqrt() + flat(p.mean)[0].abs()) + slack.sqrt() * 1e-3
        assert bool(((flat(p.mean)[0] - flat(all_of_it.predict(problem.query).mean)[0]).abs() <= spread).all())


@holds(problems())
def test_covariances_are_positive_and_agree_with_variances(problem: Problem, data: st.DataObject):
    slack = rounding(problem).max()
    for method in (ntkgp.Exact(), ntkgp.LowRank(rank=1, draws=2, confidence=SURE)):
        posterior = problem.fit(method)
        covariance = posterior.covariance(problem.query).double()
        assert bool((covariance - covariance.T).abs().max() <= slack)
        assert float(torch.linalg.eigvalsh((covariance + covariance.T) / 2).min()) >= -10 * slack
        if isinstance(method, ntkgp.Exact):
            (variance,) = flat(posterior.predict(problem.query).variance)
            assert bool(((covariance.diagonal() - variance).abs() <= slack).all())
            assert bool(((covariance - problem.referee.covariance).abs() <= slack).all())


@holds(problems())
def test_the_order_of_the_data_does_not_matter(problem: Problem, data: st.DataObject):
    order = torch.tensor(data.draw(st.permutations(range(len(problem.x)))))
    noise = problem.noise_var[order] if isinstance(problem.noise_var, Tensor) else problem.noise_var
    one = problem.fit().predict(problem.query)
    two = problem.fit(x=problem.x[order], y=problem.y[order], noise_var=noise).predict(problem.query)
    slack = rounding(problem)
    assert bool(((flat(one.variance)[0] - flat(two.variance)[0]).abs() <= slack).all())
    spread = flat(one.mean)[0].abs() + flat(one.std)[0] + slack.sqrt()
    assert bool(((flat(one.mean)[0] - flat(two.mean)[0]).abs() <= 1e-6 * spread).all())


@holds(problems())
def test_units_do_not_matter(problem: Problem, data: st.DataObject):
    """y, the noise and the prior in other units: the answer in other units."""
    unit = 10.0 ** data.draw(st.floats(-6, 6))
    method = data.draw(st.sampled_from([ntkgp.Exact(), ntkgp.LowRank(rank=1)]))
    one = problem.fit(method).predict(problem.query)
    scaled = problem.fit(method, y=unit * problem.y, noise_var=unit**2 * problem.noise_var, prior_var=unit**2)
    two = scaled.predict(problem.query)
    for name, power in {"mean": 1, "variance": 2, "lower": 2, "upper": 2}.items():
        a, b = flat(getattr(one, name))[0], flat(getattr(two, name))[0] / unit**power
        # The solver of LowRank stops where the mean is within 0.05 standard deviations.
        solved = 0.0 if isinstance(method, ntkgp.Exact) else 0.05
        slack = rounding(problem)
        if power == 1:
            slack = (solved + 1e-5) * flat(one.std)[0] + 1e-5 * a.abs() + slack.sqrt() * 1e-3
        assert bool(((a - b).abs() <= slack).all()), name


@holds(problems(one_noise=True))
def test_copies_are_one_observation_with_less_noise(problem: Problem, data: st.DataObject):
    """k observations of a point are one of their mean with a k-th of the noise."""
    k = data.draw(st.integers(2, 4))
    x, _ = torch.unique(problem.x, dim=0, return_inverse=True)
    noise = float(torch.as_tensor(problem.noise_var))
    g = torch.Generator().manual_seed(k)
    y = problem.y[: len(x)].repeat(k, *[1] * (problem.y.ndim - 1))
    y = y + torch.randn(y.shape, generator=g, dtype=torch.float64) * y.abs().max()
    many = problem.fit(x=x.repeat(k, 1), y=y, noise_var=noise).predict(problem.query)
    one = problem.fit(x=x, y=y.unflatten(0, (k, -1)).mean(dim=0), noise_var=noise / k).predict(problem.query)
    slack = k * rounding(problem)
    assert bool(((flat(one.variance)[0] - flat(many.variance)[0]).abs() <= slack).all())
    spread = flat(one.mean)[0].abs() + flat(one.std)[0] * float(y.abs().max()) / noise**0.5 + slack.sqrt()
    assert bool(((flat(one.mean)[0] - flat(many.mean)[0]).abs() <= 1e-6 * spread).all())


@holds(problems())
def test_float32_is_close_or_says_how_far(problem: Problem, data: st.DataObject):
    """A float32 network in float32 arithmetic, against the same network in float64."""
    single = problem.net.float()
    data32 = {"x": problem.x.float(), "y": problem.y.float(), "noise_var": problem.noise_var}
    query = problem.query.float()
    generator = torch.Generator().manual_seed(0)
    exact = ntkgp.fit(single, **data32).predict(query, noise_var=float(torch.as_tensor(problem.noise_var).min()))  # in float64
    for method in (ntkgp.Exact(dtype=torch.float32), ntkgp.LowRank(rank=1)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ntkgp.NumericalWarning)
            p = ntkgp.fit(single, **data32, method=method, generator=generator).predict(query)
        mean, variance, lower, upper = flat(p.mean, p.variance, p.lower, p.upper)
        assert bool(torch.isfinite(mean).all())
        assert bool(((lower >= 0) & (lower <= variance) & (variance <= upper)).all())
        if any(issubclass(one.category, ntkgp.NumericalWarning) for one in caught):
            continue
        # The Jacobian itself is rounded, by 1e-7 and more in deep networks.
        slack = 1e-5 * problem.referee.prior.diagonal() + torch.finfo(torch.float32).tiny
        assert bool((lower <= 1.1 * flat(exact.variance)[0] + slack).all())
        assert bool((upper >= 0.9 * flat(exact.variance)[0] - slack).all())
        off = (mean - flat(exact.mean)[0]).abs()
        assert bool((off <= 0.5 * flat(exact.total_std)[0] + 0.01 * flat(exact.mean)[0].abs() + slack).all()), (off, exact)
    problem.net.double()
