"""The recipe for tables: a network and its hyper-parameters for data without further knowledge.

It was chosen by validation within the training splits of public data sets (docs/tuning.md lists what was tried). The network
has infinite width and three parts, each with one scale per input. One with erf models trends; one with sine, whose kernel is
a squared exponential, models hills and waves; one with ReLU models kinks and steps. Marginal likelihood weighs them. Before
the data speak, the rough third part is small: else a part of the noise would pass for structure.

With a finite width the networks have weights (:mod:`ntkgp.tuning.recipe.finite`): for tables with more rows than an N × N
matrix allows.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.check_data import check_table
from ntkgp._system.check_options import check_count
from ntkgp._system.progress import progress_bar
from ntkgp._system.settings import in_own_settings
from ntkgp._system.threads import FEW_ROWS, one_thread
from ntkgp.networks.activations import Erf, Sine
from ntkgp.networks.infinite.layers import InfiniteLinear
from ntkgp.networks.layers import InputScales
from ntkgp.networks.mlp import mlp
from ntkgp.networks.sums import SumOfNetworks
from ntkgp.problem.gathering import noise_differs
from ntkgp.tuning.recipe.cross_validation import FEWEST, FOLDS, MOST, STEPS, cross_validated
from ntkgp.tuning.recipe.finite import FiniteSizes, tune_finite
from ntkgp.tuning.result import Tuned
from ntkgp.tuning.search import SearchOptions
from ntkgp.tuning.subsets import copies_of_rows
from ntkgp.tuning.tune import tune_by

PHASE_STD = 4.0  # radians: the bias of the sine; phases so spread make the kernel depend on x − x′ alone
ROUGH_SHARE = 0.05  # of the prior variance that the data's variance suggests for each layer
# Layers with a prior variance each, and its centre relative to an equal share; the first layer of the sine network is fixed.
LAYERS = {
    "networks.0.1.0": 1.0, "networks.0.1.2": 1.0, "networks.1.1.2": 1.0,
    "networks.2.1.0": ROUGH_SHARE, "networks.2.1.2": ROUGH_SHARE, "networks.2.1.4": ROUGH_SHARE,
}  # fmt: skip


@in_own_settings(gradients=True)
def tune_table(
    x: Float[Tensor, "N D"],
    y: Float[Tensor, "N"] | Float[Tensor, "N C"],
    *,
    noise_var: str | float | Tensor = "shared",
    width: float = math.inf,
    local_width: int = 2048,
    warm_networks: int = 6,
    warm_width: int = 64,
    warm_steps: Sequence[int] = (0, 60, 200),
    points: int = 2000,
    starts: int = 3,
    steps: int = 100,
    hyper_prior: float = 1.0,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> Tuned:
    """Build a network for a table and tune its hyper-parameters; ``tune_table(x, y).fit(x, y)`` is its posterior.

    Inputs and targets should be standardised (:class:`ntkgp.sklearn.NTKGPRegressor` does that): the prior mean is zero and
    the starting scales are for features of standard deviation 1. Rows that repeat both inputs and target count once, unless
    repeated inputs also have different targets. Cost: at most `starts`·`steps`/4 evaluations of the marginal likelihood of 500
    rows and `steps` of n rows, each n³ operations and some hundred per pair of rows, n = min(N·C, points). Memory: 5·n²
    numbers. The posterior needs N² numbers.

    Args:
        x: standardised features.
        y: standardised targets.
        noise_var: as for :func:`ntkgp.tune`.
        width: width of the hidden layers. ``math.inf`` for the limit; a finite width for networks with weights, as `LowRank`
            and tables of more than some 20,000 rows need: a smooth one and a local one, and features of networks that are
            trained briefly. Its cost: at most `starts`·`steps`/4 + `steps` evaluations, each with four products of n²
            numbers by about 3·`width` + 2·`local_width`; memory about 25·n² numbers.
        local_width: with a finite width, that of the local network's hidden layer, whose kernel needs a rank well above N.
        warm_networks: with a finite width, number of small networks that are trained for features; 0 for none.
        warm_width: width of their two hidden layers.
        warm_steps: candidates for their number of training steps. Held-out points choose the candidate whose features improve
            the whole sum most (:func:`ntkgp.warm_up`; the choice is in ``tuned.warm_up``). 0 means no such networks; with
            fewer than 12 points there are none either.
        points: largest number of rows N·C for tuning; above it, a random subset is used.
        starts: as for :func:`ntkgp.tune`.
        steps: as for :func:`ntkgp.tune`.
        hyper_prior: as for :func:`ntkgp.tune`.
        generator: all random numbers; torch's global generator if None.
        progress: show progress bars.

    Example:
        >>> import torch, ntkgp
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.randn(80, 3, generator=g)
        >>> y = torch.sin(x[:, 0]) * x[:, 1] + 0.1 * torch.randn(80, generator=g)
        >>> tuned = ntkgp.tune_table(x, y, generator=g)
        >>> tuned.fit(x, y).predict(x[:5]).mean.shape
        torch.Size([5])
    """
    check_count(warm_networks, "warm_networks", 0)
    for name, value in {"local_width": local_width, "warm_width": warm_width}.items():
        check_count(value, name, 1)
    if width != math.inf:
        check_count(width, "width", 1)  # pyright: ignore[reportArgumentType]
    check_table(x, y)
    options = SearchOptions(
        True, False, [[name] for name in LAYERS], noise_var, None, tuple(LAYERS), starts, steps, hyper_prior,
        shares=tuple(LAYERS.values()),
    )  # fmt: skip
    if width != math.inf:
        sizes = FiniteSizes(int(width), local_width, warm_networks, warm_width, warm_steps)
        return tune_finite(x, y, sizes, options, points, generator, progress)
    inputs, outputs = x.shape[1], y.shape[1] if y.ndim == 2 else 1
    once = torch.ones_like(x[:, 0], dtype=torch.bool) if noise_differs(noise_var) else ~copies_of_rows(x, y)
    network, bar = infinite_table(inputs, outputs).to(x), partial(progress_bar, progress, desc="tuning")
    x, y = x[once], y[once]
    with one_thread(len(x) < FEW_ROWS):
        tuned = tune_by(options, [network], x, y, points, generator, bar)
        if FEWEST <= y.numel() <= min(points, MOST) and not noise_differs(noise_var):
            place = "cpu" if generator is None else generator.device
            order = torch.randperm(len(x), generator=generator, device=place).to(x.device)
            with progress_bar(progress, total=FOLDS * STEPS, desc="cross-validating") as shown:
                tuned = replace(tuned, cross_validated=cross_validated(network, x, y, options, tuned, order, shown))
    return tuned.widened()


def infinite_table(inputs: int, outputs: int) -> SumOfNetworks:
    """The network of the recipe before tuning.

    Example:
        >>> import torch, ntkgp
        >>> ntkgp.kernel(infinite_table(3, 1), torch.zeros(2, 3)).shape
        torch.Size([2, 2])
    """
    trend = mlp(inputs, outputs, width=math.inf, depth=1, activation=Erf(), output_scale=1.0)
    waves = nn.Sequential(
        InfiniteLinear(inputs, math.inf, bias_std=PHASE_STD), Sine(), InfiniteLinear(math.inf, outputs, bias=False)
    )
    rough = mlp(inputs, outputs, width=math.inf, depth=2, activation=nn.ReLU(), output_scale=1.0)
    return SumOfNetworks(*(nn.Sequential(InputScales(torch.ones(inputs)), part) for part in (trend, waves, rough)))
