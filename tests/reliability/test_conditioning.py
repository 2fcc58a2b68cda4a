"""From no noise to nothing but noise, from one point to thousands, crowded and repeated: right, or a warning with the figure.

The network is linear without a bias, so that its Jacobian is the data itself and holds no rounding of its own: what is judged
is the linear algebra alone. Real networks come after it, at conditions that the rounding of their Jacobians allows.
"""

import math
import re
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from tests.support import oracle, precise
from tests.support.cases import by_name
from tests.support.helpers import SURE
from tests.support.long_form import LONG, recorded

FEATURES = 12
SIZES = [1, 2, 13, 60, 400, *([2000, 5000] if LONG else [])]
NOISES = [1e-10, 1e-6, 1e-2, 1e2, 1e6]  # of the prior variance
PLACES = ["spread", "crowded", "repeated"]
SOLVED_BY: dict[str, ntkgp.Exact | ntkgp.LowRank] = {
    "exact": ntkgp.Exact(), "low rank": ntkgp.LowRank(rank=6, draws=4, confidence=SURE),
    "full rank": ntkgp.LowRank(rtol=1e-6, confidence=SURE),
}  # fmt: skip
OFF = 0.1  # posterior standard deviations that a mean may be off without a warning
SHARE = 0.01  # the same for variances, relative


COUNTS = {"answers": 0, "warned": 0}


@pytest.fixture(autouse=True, scope="module")
def _recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    with recorded("conditioning", request, lambda: {"sizes": SIZES, "noises": NOISES, "places": PLACES, **COUNTS}):
        yield


def points(count: int, place: str) -> Tensor:
    x = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    if place == "crowded":  # all within a millionth of two points
        x = x[torch.arange(count) % 2] + 1e-6 * x
    if place == "repeated":
        x = x[torch.arange(count) // 3]
    return x


@pytest.mark.filterwarnings("ignore::ntkgp.NumericalWarning")
@pytest.mark.parametrize("method", SOLVED_BY)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("noise", NOISES)
def test_right_or_warned(noise: float, place: str, method: str):
    problems = []
    for count in SIZES:
        x = points(count, place)
        y = x[:, 0].sin() + 0.1 * torch.randn(count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        query = torch.cat([x[:1], points(4, "spread"), 100 * points(1, "spread")])
        variance = noise * float(x.square().sum(dim=1).mean())
        net = nn.utils.skip_init(nn.Linear, FEATURES, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(net.get_parameter("weight"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ntkgp.NumericalWarning)
            if method == "low rank" and count < 6:
                continue
            posterior = ntkgp.fit(
                net, x, y, noise_var=variance, method=SOLVED_BY[method], generator=torch.Generator().manual_seed(0)
            )
            p = posterior.predict(query)
        COUNTS["answers"] += 1
        COUNTS["warned"] += bool(caught)
        expected = precise.posterior(x, query, y, variance)
        exact, std = expected.variance, expected.variance.sqrt()
        assert all(bool(torch.isfinite(part).all()) for part in (p.mean, p.variance, p.lower, p.upper))
        assert bool(((p.lower >= 0) & (p.lower <= p.variance) & (p.variance <= p.upper)).all())
        away = ((p.mean - expected.mean).abs() / std).max()
        outside = (torch.maximum(p.lower - exact, exact - p.upper) / exact).max()
        wrong = ((p.variance - exact).abs() / exact).max() if method == "exact" else outside
        said_away, said_wrong = said(caught)
        if away > max(OFF, 10 * said_away) or wrong > max(SHARE, 10 * said_wrong):
            problems.append(f"N {count}: mean off by {away:.1e} standard deviations, said {said_away:.1e}; "
                            f"variance by {wrong:.1e}, said {said_wrong:.1e}")  # fmt: skip
        # Without noise to speak of the answer is that of exact interpolation: never far off, warning or not.
        scale = expected.mean.abs().max() + std.max()
        if not math.isclose(float(((p.mean - expected.mean) / scale).abs().max()), 0, abs_tol=0.05):
            problems.append(f"N {count}: the mean is wrong")
    assert problems == []


def said(caught: list[warnings.WarningMessage]) -> tuple[float, float]:
    """By how many standard deviations the mean may be off, and by which part the variance, by the words of warnings."""
    words = " ".join(str(one.message) for one in caught)
    if found := re.search(r"mean by about (\S+) posterior standard deviations and the variance by (\d+)%", words):
        return float(found[1]), int(found[2]) / 100
    found = re.search(r"answers may be off by (\S+) posterior standard deviations", words)
    return (float(found[1]), 0.0) if found else (0.0, 0.0)


@pytest.mark.filterwarnings("ignore::ntkgp.NumericalWarning")
@pytest.mark.parametrize("name", ["paper mlp", "two outputs", "duplicated points", "layer norm"])
@pytest.mark.parametrize("noise", [1e-8, 1e-4, 1.0, 1e4])
def test_real_networks(name: str, noise: float):
    case = by_name(name)
    module = case.module()
    J, Q = oracle.jacobian(module, case.x), oracle.jacobian(module, case.query)
    expected = precise.posterior(J, Q, case.y.flatten(), noise)
    std = expected.variance.sqrt()
    for method in (ntkgp.Exact(), ntkgp.LowRank(rank=4), ntkgp.LowRank(rtol=0.1)):
        p = ntkgp.fit(
            module, case.x, case.y, noise_var=noise, method=method, generator=torch.Generator().manual_seed(0)
        ).predict(case.query)
        mean, lower, upper = (part.flatten() for part in (p.mean, p.lower, p.upper))
        assert bool(((mean - expected.mean).abs() <= OFF * std).all())
        assert bool((lower <= (1 + SHARE) * expected.variance).all())
        assert bool((upper >= (1 - SHARE) * expected.variance).all())


def test_the_warning_says_how_far():
    """Noise a trillionth of the prior variance at points that repeat: beyond float64, and said so."""
    x = points(300, "repeated")
    net = nn.Linear(FEATURES, 1, bias=False, dtype=torch.float64)
    y = torch.randn(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.warns(ntkgp.NumericalWarning, match=r"noise_var|standard deviations"):
        ntkgp.fit(net, x, y, noise_var=1e-13 * FEATURES)
