"""The recipe for tables: which networks, which features, which hyper-parameters, for data that comes without advice.

Found by validation inside the training splits of six public sets (docs/tuning.md has the table of what was tried): the kernel
is the sum of three. A smooth network carries the trend. A network of high random frequencies stands for what only neighbours
know, and where there are none acts as noise. A few small networks, each trained briefly on its own half of the data, bring
features. Marginal likelihood weighs them, with a scale of its own for every input of the first two.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.check_data import check_table
from ntkgp._system.check_options import check_count
from ntkgp.networks.layers import InputScales, Sine, gaussian
from ntkgp.networks.mlp import mlp
from ntkgp.networks.sums import SumOfNetworks
from ntkgp.tuning.result import Tuned, WarmUp
from ntkgp.tuning.tune import tune
from ntkgp.tuning.warm_up import warm_up

SMOOTH, LOCAL = 0.7, 14.0  # starting scales of standardised inputs
FEWEST = 12  # points below which there is nothing to learn features from


def tune_table(
    x: Float[Tensor, "N D"],
    y: Float[Tensor, "N"] | Float[Tensor, "N C"],
    *,
    noise_var: str | float | Tensor = "shared",
    width: int = 512,
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
    """A network with tuned hyper-parameters for a table; ``tune_table(x, y).fit(x, y)`` is its posterior.

    Inputs and targets should be standardised (:class:`ntkgp.sklearn.NTKGPRegressor` does that): the prior mean is zero and
    the starting scales are for features of standard deviation 1. Cost: at most `starts`·`steps`/4 + `steps` evaluations of
    the marginal likelihood, each four products of n² by about 3·`width` + 2·`local_width` numbers, n = min(N·C, points).
    Memory: some 25·n² numbers.

    Args:
        x: standardised features.
        y: standardised targets.
        noise_var: as for :func:`ntkgp.tune`.
        width: of the smooth network's two hidden layers.
        local_width: of the local network's hidden layer; its kernel must have a rank well above N to stand for noise.
        warm_networks: how many small networks are trained for features; 0 for none.
        warm_width: of their two hidden layers.
        warm_steps: how long; of several, held-out points choose by what the features add to the other networks
            (:func:`ntkgp.warm_up`; the choice is in ``tuned.warm_up``), and with 0 the networks are left out, as they
            are below 12 points.
        points: rows beyond which hyper-parameters are tuned on a random subset.
        starts: as for :func:`ntkgp.tune`.
        steps: as for :func:`ntkgp.tune`.
        hyper_prior: as for :func:`ntkgp.tune`.
        generator: source of all randomness; the global one when None.
        progress: show progress bars.

    Example:
        >>> import torch, ntkgp
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.randn(80, 3, generator=g)
        >>> y = torch.sin(x[:, 0]) * x[:, 1] + 0.1 * torch.randn(80, generator=g)
        >>> tuned = ntkgp.tune_table(x, y, width=32, local_width=64, warm_steps=[20], steps=20, generator=g)
        >>> tuned.fit(x, y).predict(x[:5]).mean.shape
        torch.Size([5])
    """
    for name, value in {"width": width, "local_width": local_width, "warm_width": warm_width}.items():
        check_count(value, name, 1)
    check_count(warm_networks, "warm_networks", 0)
    check_table(x, y)
    inputs, outputs = x.shape[1], y.shape[1] if y.ndim == 2 else 1
    smooth = mlp(inputs, outputs, width=width, activation=nn.SiLU(), output_scale=1.0, generator=generator)
    local = mlp(inputs, outputs, width=local_width, depth=1, activation=Sine(), output_scale=1.0, generator=generator)
    plain = [_scaled(SMOOTH, smooth, inputs).to(x), _scaled(LOCAL, local, inputs).to(x)]
    trained, warm = list[nn.Module](), None
    if warm_networks and len(x) >= FEWEST:
        fresh = [_small(inputs, outputs, warm_width, generator).to(x) for _ in range(warm_networks)]

        def in_the_sum(warm: WarmUp, x: Tensor, y: Tensor, x_held: Tensor, y_held: Tensor) -> float:
            """Mean log density of held-out points: features are worth what they add to the other networks."""
            options = {"points": y.numel(), "starts": 1, "steps": min(steps, 50), "hyper_prior": hyper_prior}
            networks, groups = _sum(plain, _networks(warm))
            trial = tune(networks, x, y, prior_var=groups, **options).widened()
            return float(trial.fit(x, y).predict(x_held).log_density(y_held).mean())

        warm = warm_up(fresh, x, y, steps=warm_steps, score=in_the_sum, share=0.5, generator=generator, progress=progress)
        trained = _networks(warm)
    networks, groups = _sum(plain, trained)
    tuned = tune(
        networks, x, y, prior_var=groups, noise_var=noise_var, points=points, starts=starts, steps=steps,
        hyper_prior=hyper_prior, generator=generator, progress=progress,
    )  # fmt: skip
    return replace(tuned.widened(), warm_up=warm)


def _sum(plain: list[nn.Module], trained: list[nn.Module]) -> tuple[nn.Module, list[list[str]]]:
    """The networks as one, and which layers share a prior variance."""
    groups = [[f"networks.0.1.{layer}"] for layer in (0, 2, 4)] + [[f"networks.1.1.{layer}"] for layer in (0, 2)]
    # One prior variance for each depth, shared by the trained networks: this averages their kernels.
    groups += [[f"networks.{2 + k}.{layer}" for k in range(len(trained))] for layer in (0, 2, 4) if trained]
    return SumOfNetworks(*plain, *trained), groups


def _networks(warm: WarmUp) -> list[nn.Module]:
    """The trained networks; none where no training was best."""
    if not warm.steps:
        return []
    return list(warm.module.networks) if isinstance(warm.module, SumOfNetworks) else [warm.module]


def _scaled(scale: float, network: nn.Module, inputs: int) -> nn.Module:
    return nn.Sequential(InputScales(torch.full((inputs,), scale)), network)


def _small(inputs: int, outputs: int, width: int, generator: torch.Generator | None) -> nn.Module:
    """Two hidden layers, SiLU, initial weights of He et al. (2015)."""
    layers: list[nn.Module] = []
    for k, (fan_in, fan_out) in enumerate([(inputs, width), (width, width), (width, outputs)]):
        layer = nn.utils.skip_init(nn.Linear, fan_in, fan_out)  # which leaves the global generator alone
        assert isinstance(layer, nn.Linear)
        with torch.no_grad():
            layer.weight.copy_(gaussian(fan_out, fan_in, generator=generator) * math.sqrt((2.0 if k else 1.0) / fan_in))
            layer.bias.copy_(0.1 * gaussian(fan_out, generator=generator))
        layers += [layer, nn.SiLU()]
    return nn.Sequential(*layers[:-1])
