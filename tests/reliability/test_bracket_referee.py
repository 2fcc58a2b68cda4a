"""Random problems against a referee that computes with many digits: no variance is outside of its bracket.

Networks in float32 and float64, noise over ten orders of magnitude from point to point, updates, saved and loaded posteriors.
The referee judges the network as given: its weights are numbers, and its Jacobian is computed from them in many digits.
"""

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from tests.support import many_digits, precise
from tests.support.long_form import LONG, recorded

BLOCKS, PROBLEMS = (100, 100) if LONG else (6, 8)
SHARP = 0.2  # relative width of the sharpened brackets
COUNTS = {"problems": 0, "bounds": 0, "outside": 0, "warned": 0, "means off by a standard deviation without a warning": 0}


@pytest.fixture(autouse=True, scope="module")
def _recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    with recorded("bracket referee", request, lambda: COUNTS):
        yield


@dataclass
class Drawn:
    """A random problem: what it is, and the posterior that the library gives."""

    net: nn.Sequential
    x: Tensor
    y: Tensor
    noise: Tensor
    prior_var: float
    method: ntkgp.LowRank | ntkgp.TrainedNetworks
    parts: list[int]  # points per fit or update
    saved: bool


def drawn(seed: int) -> Drawn:
    g = torch.Generator().manual_seed(seed)

    def pick(*choices: object) -> object:
        return choices[int(torch.randint(len(choices), (), generator=g))]

    def count(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    def real(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=g))

    dtype = torch.float32 if seed % 2 else torch.float64
    inputs, outputs, width = count(1, 3), int(pick(1, 1, 1, 2, 5)), count(1, 6)  # pyright: ignore[reportArgumentType]
    activation = pick(nn.Identity, nn.ReLU, nn.Tanh, nn.Sigmoid)
    bias = bool(pick(True, False))
    layers: list[nn.Module] = [nn.Linear(inputs, outputs, bias=bias)]
    if pick(True, True, False):
        layers = [nn.Linear(inputs, width, bias=bias), activation(), nn.Linear(width, outputs)]  # pyright: ignore
    net = nn.Sequential(*layers)
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=g, dtype=torch.float64)
    points = count(1, 11)
    x = torch.randn(points, inputs, generator=g, dtype=torch.float64) * 10 ** real(-2, 2)
    if pick(True, False, False) and points > 2:  # a repeated point, and one that nearly coincides with another
        x[1], x[2] = x[0], x[0] * (1 + 1e-6)
    y = torch.randn(points, outputs, generator=g, dtype=torch.float64)
    noise = 10 ** torch.rand(points, outputs, generator=g, dtype=torch.float64).mul(10).sub(10)
    if pick(True, False):  # one point with little noise among noisy ones
        noise[:], noise[count(0, points - 1)] = 0.07, 10 ** real(-10, -1)
    net, x, y = net.to(dtype), x.to(dtype), y if pick(True, False) else y.to(dtype)
    smallest = min(points * outputs, sum(p.numel() for p in net.parameters()))
    parts = [points]
    if points > 3 and pick(True, False):
        parts = [points - 2, 1, 1]
        smallest = min(smallest, parts[0] * outputs)
    method = ntkgp.LowRank(rank=count(1, smallest), draws=int(pick(0, 2)))  # pyright: ignore[reportArgumentType]
    if seed % 20 == 0:
        method = ntkgp.TrainedNetworks(rank=method.rank or 1, trainer=ntkgp.AcceleratedGD(max_steps=2))
    return Drawn(net, x, y, noise, 10 ** real(-2, 2), method, parts, bool(pick(True, False)))


def answered(problem: Drawn, query: Tensor) -> list[ntkgp.Prediction]:
    """The prediction, and brackets that are certified: of the prediction itself, or sharpened."""
    xs, ys, noises = (t.split(problem.parts) for t in (problem.x, problem.y, problem.noise))
    posterior = ntkgp.fit(
        problem.net, xs[0], ys[0], noise_var=noises[0], prior_var=problem.prior_var, method=problem.method,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    for x, y, noise in zip(xs[1:], ys[1:], noises[1:], strict=True):
        posterior = posterior.update(x, y, noise_var=noise, generator=torch.Generator().manual_seed(1))
    if problem.saved:
        with tempfile.TemporaryDirectory() as folder:
            posterior.save(Path(folder) / "posterior")
            posterior = ntkgp.load(Path(folder) / "posterior", problem.net)
    found, certified = posterior.predict(query), [posterior.sharpen(query, rtol=SHARP, max_iterations=200)]
    return [found, *certified, *([found] if found.confidence == 1 else [])]


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_variance_is_outside_of_its_bracket(block: int):
    for seed in range(PROBLEMS * block, PROBLEMS * (block + 1)):
        problem = drawn(seed)
        g = torch.Generator().manual_seed(seed)
        far = torch.randn(2, problem.x.shape[1], generator=g, dtype=problem.x.dtype) * torch.tensor([[1.0], [100.0]])
        query = torch.cat([problem.x[:3], problem.x[-1:] * (1 + 1e-4), far.to(problem.x.dtype)])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ntkgp.NumericalWarning)
            found, *certified = answered(problem, query)
        rows, at = many_digits.jacobian(problem.net, problem.x), many_digits.jacobian(problem.net, query)
        scale = problem.prior_var**0.5
        rows, at = ([[value * scale for value in row] for row in part] for part in (rows, at))
        mean, variance = precise.posterior_of_rows(rows, at, problem.y.double().flatten(), problem.noise.flatten())
        truth = torch.tensor(variance, dtype=torch.float64)
        COUNTS["problems"] += 1
        COUNTS["warned"] += bool(caught)
        for bracket in certified:
            assert bracket.confidence == 1
            lower, upper, middle = (part.double().flatten() for part in (bracket.lower, bracket.upper, bracket.variance))
            outside = int(((lower > truth) | (truth > upper)).sum())
            COUNTS["bounds"] += 2 * len(truth)
            COUNTS["outside"] += outside
            assert outside == 0, f"problem {seed}: {lower.tolist()} ≤ {truth.tolist()} ≤ {upper.tolist()}"
            assert bool(((lower >= 0) & (lower <= middle) & (middle <= upper)).all()), f"problem {seed}"
        if isinstance(problem.method, ntkgp.LowRank) and not caught:
            off = (found.mean.double().flatten() - torch.tensor(mean, dtype=torch.float64)).abs()
            rounding = torch.finfo(found.mean.dtype).eps * torch.tensor(mean, dtype=torch.float64).abs()
            wrong = bool((off > truth.sqrt() + rounding).any())
            COUNTS["means off by a standard deviation without a warning"] += wrong
            assert not wrong, f"problem {seed}: mean off by {float((off / truth.sqrt()).max()):.1e} standard deviations"
