"""The recipe for tables: networks, features and hyper-parameters for data without further knowledge.

It was chosen by validation within the training splits of six public data sets (docs/tuning.md lists what was tried). The kernel
is a sum of three. A smooth network models the trend. A network with high random frequencies models local variation: it matters
near training points, and acts as noise away from them. A few small networks, each trained briefly on half of the data, add
features. Marginal likelihood weighs the three, with one scale per input in each of the first two.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.check_data import check_table
from ntkgp._system.check_options import check_count
from ntkgp._system.settings import in_own_settings
from ntkgp.networks.activations import Sine
from ntkgp.networks.layers import InputScales, gaussian
from ntkgp.networks.mlp import mlp
from ntkgp.networks.sums import SumOfNetworks
from ntkgp.tuning.result import Tuned, WarmUp
from ntkgp.tuning.tune import tune
from ntkgp.tuning.warm_up import warm_up

SMOOTH, LOCAL = 0.7, 14.0  # starting input scales of the smooth and the local network, for standardised inputs
MIN_WARM_POINTS = 12  # with fewer points no features are trained


@in_own_settings(gradients=True)
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
    """Build a network for a table and tune its hyper-parameters; ``tune_table(x, y).fit(x, y)`` is its posterior.

    Inputs and targets should be standardised (:class:`ntkgp.sklearn.NTKGPRegressor` does that): the prior mean is zero and
    the starting scales are for features of standard deviation 1. Cost: at most `starts`·`steps`/4 + `steps` evaluations of
    the marginal likelihood, each with four products of n² numbers by about 3·`width` + 2·`local_width`, n = min(N·C, points).
    Memory: about 25·n² numbers.

    Args:
        x: standardised features.
        y: standardised targets.
        noise_var: as for :func:`ntkgp.tune`.
        width: width of the smooth network's two hidden layers.
        local_width: width of the local network's hidden layer; to act as noise, its kernel needs a rank well above N.
        warm_networks: number of small networks that are trained for features; 0 for none.
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
    if warm_networks and len(x) >= MIN_WARM_POINTS:
        fresh = [_small(inputs, outputs, warm_width, generator).to(x) for _ in range(warm_networks)]

        def score_in_sum(warm: WarmUp, x: Tensor, y: Tensor, x_held: Tensor, y_held: Tensor) -> float:
            """Return the mean log density of held-out points under the sum of the trained features and the other networks."""
            options = {"points": y.numel(), "starts": 1, "steps": min(steps, 50), "hyper_prior": hyper_prior}
            networks, groups = _sum(plain, _networks(warm))
            trial = tune(networks, x, y, prior_var=groups, **options).widened()
            return float(trial.fit(x, y).predict(x_held).log_density(y_held).mean())

        warm = warm_up(fresh, x, y, steps=warm_steps, score=score_in_sum, share=0.5, generator=generator, progress=progress)
        trained = _networks(warm)
    networks, groups = _sum(plain, trained)
    tuned = tune(
        networks, x, y, prior_var=groups, noise_var=noise_var, points=points, starts=starts, steps=steps,
        hyper_prior=hyper_prior, generator=generator, progress=progress,
    )  # fmt: skip
    return replace(tuned.widened(), warm_up=warm)


def _sum(plain: list[nn.Module], trained: list[nn.Module]) -> tuple[nn.Module, list[list[str]]]:
    """Return the sum of the networks, and the groups of layers that share a prior variance."""
    groups = [[f"networks.0.1.{layer}"] for layer in (0, 2, 4)] + [[f"networks.1.1.{layer}"] for layer in (0, 2)]
    # The trained networks share one prior variance per depth, which averages their kernels.
    groups += [[f"networks.{2 + k}.{layer}" for k in range(len(trained))] for layer in (0, 2, 4) if trained]
    return SumOfNetworks(*plain, *trained), groups


def _networks(warm: WarmUp) -> list[nn.Module]:
    """Return the trained networks; an empty list if 0 steps was best."""
    if not warm.steps:
        return []
    return list(warm.module.networks) if isinstance(warm.module, SumOfNetworks) else [warm.module]


def _scaled(scale: float, network: nn.Module, inputs: int) -> nn.Module:
    return nn.Sequential(InputScales(torch.full((inputs,), scale)), network)


def _small(inputs: int, outputs: int, width: int, generator: torch.Generator | None) -> nn.Module:
    """Build a network with two hidden layers, SiLU and the initial weights of He et al. (2015)."""
    layers: list[nn.Module] = []
    for k, (fan_in, fan_out) in enumerate([(inputs, width), (width, width), (width, outputs)]):
        layer = nn.utils.skip_init(nn.Linear, fan_in, fan_out)  # does not use torch's global generator
        assert isinstance(layer, nn.Linear)
        with torch.no_grad():
            layer.weight.copy_(gaussian(fan_out, fan_in, generator=generator) * math.sqrt((2.0 if k else 1.0) / fan_in))
            layer.bias.copy_(0.1 * gaussian(fan_out, generator=generator))
        layers += [layer, nn.SiLU()]
    return nn.Sequential(*layers[:-1])
