"""Build a problem from the user's arguments. All checks of the data happen here, once."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ntkgp._system.check_data import check_inputs, check_noise, check_sizes, check_targets
from ntkgp._system.check_module import prior_scales
from ntkgp._system.types import MeanFunction
from ntkgp.distributed.shard import Shard
from ntkgp.distributed.split_space import replicated
from ntkgp.linalg.space import WHOLE
from ntkgp.problem.answers import Answers
from ntkgp.problem.batches import Batches
from ntkgp.problem.data import Data
from ntkgp.problem.gathering import opening
from ntkgp.problem.operators import Operators
from ntkgp.problem.prior_mean import mean_function, network_mean, residual_of
from ntkgp.problem.problem import Problem
from ntkgp.problem.source import Source
from ntkgp.storage.fingerprint import dtypes_of
from ntkgp.tangent.network import PureNetwork
from ntkgp.tangent.opening import open_network, tangent_of


def build_problem(
    module: nn.Module,
    source: Source,
    *,
    prior_mean: MeanFunction | None = None,
    prior_var: float | Mapping[str, float] = 1.0,
    dtype: torch.dtype | None = None,
    parameters: Iterable[str] | None = None,
) -> Problem:
    """Check the user's arguments and build the :class:`Problem`; missing targets become zeros (covariance only).

    With a group, `source` holds the points of this rank, possibly none.
    """
    group, x = source.group, source.x
    if group is None:
        first, kind = next(iter(x))[0] if isinstance(x, Batches) else x, None
    else:
        first, kind = opening(group, x, source.y)
    network, outputs = open_network(module, first, dtype, parameters)
    mean = mean_function(prior_mean, network, outputs, first)
    here, like, residual = _residuals(source, network, outputs, mean)
    if kind is not None:  # the target shape and dtype that all ranks agree on
        check_targets(kind, first[:0], outputs)
        like = kind
    noise = check_noise(source.noise_var, (len(residual) // outputs, outputs)).to(network.device)
    noise_std = noise.sqrt().to(network.dtype).flatten()
    check_sizes(residual, noise_std)
    common = check_noise(source.noise_var, (1, outputs)).to(network.device).clone() if source.noise_is_common else None
    data = Data(
        x=first[:0] if here is None else here.detach().clone(),  # a copy: the user may change x later
        residual=residual,
        noise_std=noise_std,
        outputs=outputs,
        common_noise=common,
        batches=x if isinstance(x, Batches) else None,
        shard=None if group is None else Shard.of(group, len(residual) // outputs, first),
    )
    tangent = tangent_of(network, first, outputs, prior_scales(prior_var, list(network.anchor)))
    name = "zero" if prior_mean is None else "network" if prior_mean is network_mean else "function"
    return Problem(
        network=network,
        data=data,
        operators=Operators(tangent, data, WHOLE if group is None else replicated(group)),
        answers=Answers(network, first.shape[1:], outputs, mean, name, like.ndim == 1, like.dtype),
        module_dtypes=dtypes_of(module),
    )


def _residuals(source: Source, network: PureNetwork, outputs: int, mean: MeanFunction) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the rank-local points (of batches, the first), targets with the shape and dtype of y, and all residuals."""
    x, y, nothing = source.x, source.y, torch.zeros(0, dtype=network.dtype, device=network.device)
    if isinstance(x, Batches):
        here, like, residuals = None, nothing, [nothing]
        for part_x, part_y in x.checked(network.module, outputs):
            here, like = (part_x, part_y) if here is None else (here, like)
            residuals.append(residual_of(mean, part_x, part_y, outputs, network.dtype))
        return here, like, torch.cat(residuals)
    y = torch.zeros(len(x), outputs, dtype=network.dtype, device=network.device) if y is None else y
    if not len(x) and source.group is not None:
        return x, y, nothing
    check_inputs(x, network.module)
    check_targets(y, x, outputs)
    return x, y, residual_of(mean, x, y, outputs, network.dtype)
