"""The recipe for tables with networks that have weights, for tables with many rows.

It was chosen by validation within the training splits of six public data sets (docs/tuning.md lists what was tried). The kernel
is a sum of three. A smooth network models the trend. A network with high random frequencies models local variation: it matters
near training points, and acts as noise away from them. A few small networks, each trained briefly on half of the data, add
features. Marginal likelihood weighs the three, with one scale per input in each of the first two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp.networks.activations import Sine
from ntkgp.networks.layers import InputScales, gaussian
from ntkgp.networks.mlp import mlp
from ntkgp.networks.sums import SumOfNetworks
from ntkgp.tuning.result import Tuned, WarmUp
from ntkgp.tuning.search import SearchOptions
from ntkgp.tuning.tune import tune
from ntkgp.tuning.warm_up import warm_up

SMOOTH, LOCAL = 0.7, 14.0  # starting input scales of the smooth and the local network, for standardised inputs
MIN_WARM_POINTS = 12  # with fewer points no features are trained


@dataclass(frozen=True)
class FiniteSizes:
    """Sizes of the networks; :func:`ntkgp.tune_table` explains them."""

    width: int
    local_width: int
    warm_networks: int
    warm_width: int
    warm_steps: Sequence[int]


def tune_finite(
    x: Float[Tensor, "N D"],
    y: Float[Tensor, "N *C"],
    sizes: FiniteSizes,
    options: SearchOptions,
    points: int,
    generator: torch.Generator | None,
    progress: bool,
) -> Tuned:
    """Build the networks and tune their hyper-parameters."""
    inputs, outputs = x.shape[1], y.shape[1] if y.ndim == 2 else 1
    smooth = mlp(inputs, outputs, width=sizes.width, activation=nn.SiLU(), output_scale=1.0, generator=generator)
    local = mlp(inputs, outputs, width=sizes.local_width, depth=1, activation=Sine(), output_scale=1.0, generator=generator)
    plain = [_scaled(SMOOTH, smooth, inputs).to(x), _scaled(LOCAL, local, inputs).to(x)]
    trained, warm = list[nn.Module](), None
    if sizes.warm_networks and len(x) >= MIN_WARM_POINTS:
        fresh = [_small(inputs, outputs, sizes.warm_width, generator).to(x) for _ in range(sizes.warm_networks)]

        def score_in_sum(warm: WarmUp, x: Tensor, y: Tensor, x_held: Tensor, y_held: Tensor) -> float:
            """Return the mean log density of held-out points under the sum of the trained features and the other networks."""
            networks, groups = _sum(plain, _networks(warm))
            trial = tune(
                networks, x, y, prior_var=groups, points=y.numel(), starts=1, steps=min(options.steps, 50),
                hyper_prior=options.hyper_prior,
            ).widened()  # fmt: skip
            return float(trial.fit(x, y).predict(x_held).log_density(y_held).mean())

        warm = warm_up(
            fresh, x, y, steps=sizes.warm_steps, score=score_in_sum, share=0.5, generator=generator, progress=progress
        )
        trained = _networks(warm)
    networks, groups = _sum(plain, trained)
    tuned = tune(
        networks, x, y, prior_var=groups, noise_var=options.noise_var, points=points, starts=options.starts,
        steps=options.steps, hyper_prior=options.hyper_prior, generator=generator, progress=progress,
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
