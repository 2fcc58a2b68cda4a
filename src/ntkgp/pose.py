"""The door: what the user passed, checked and posed as a problem."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ntkgp._checks import (
    check_inputs,
    check_module,
    check_noise,
    check_outputs,
    check_sizes,
    check_targets,
    chosen_parameters,
    prior_scales,
)
from ntkgp._types import MeanFunction
from ntkgp.batches import Batches
from ntkgp.distributed import Group
from ntkgp.fingerprint import dtypes_of
from ntkgp.linalg.space import WHOLE
from ntkgp.prior_mean import mean_function, network_mean, residual_of
from ntkgp.problem import Problem
from ntkgp.sharded import Shard, differs, opening, replicated
from ntkgp.tangent.functional import PureNetwork
from ntkgp.tangent.memory import ran_out
from ntkgp.tangent.tangent import Tangent


def pose(
    module: nn.Module,
    x: Tensor | Batches,
    y: Tensor | None,
    *,
    noise_var: float | Tensor,
    prior_mean: MeanFunction | None = None,
    prior_var: float | Mapping[str, float] = 1.0,
    dtype: torch.dtype | None = None,
    parameters: Iterable[str] | None = None,
    group: Group | None = None,
) -> Problem:
    """Check what the user passed and pose it as a :class:`Problem`; y = None poses zero targets (covariance only).

    With a group x and y are those of this rank, of which there may be none.
    """
    if group is None:
        first, kind = next(iter(x))[0] if isinstance(x, Batches) else x, None
    else:
        first, kind = opening(group, x, y)
    network, outputs = open_network(module, first, dtype, parameters)
    mean = mean_function(prior_mean, network, outputs)
    if isinstance(x, Batches):
        like, here, residuals = kind, None, [torch.zeros(0, dtype=network.dtype, device=network.device)]
        for part_x, part_y in x.checked(network.module, outputs):
            like, here = (part_y, part_x) if here is None else (like, here)
            residuals.append(residual_of(mean, part_x, part_y, outputs, network.dtype))
        here, residual = first[:0] if here is None else here, torch.cat(residuals)
    else:
        here, like = x, torch.zeros(len(x), outputs, dtype=network.dtype, device=network.device) if y is None else y
        if len(x) or group is None:
            check_inputs(x, network.module)
            check_targets(like, x, outputs)
            residual = residual_of(mean, x, like, outputs, network.dtype)
        else:
            residual = torch.zeros(0, dtype=network.dtype, device=network.device)
    if kind is not None:
        check_targets(kind, first[:0], outputs)
        like = kind
    assert like is not None
    noise = check_noise(noise_var, (len(residual) // outputs, outputs)).to(network.device)
    common = is_common(noise_var) if group is None else not differs(group, noise_var)
    noise_std = noise.sqrt().to(network.dtype).flatten()
    check_sizes(residual, noise_std)
    return Problem(
        network=network,
        tangent=Tangent(network, first, outputs, prior_scales(prior_var, list(network.anchor))),
        x=here.detach().clone(),  # what the user does to x later must not reach the posterior
        residual=residual,
        noise_std=noise_std,
        prior_mean=mean,
        prior_mean_name="zero" if prior_mean is None else "network" if prior_mean is network_mean else "function",
        common_noise=check_noise(noise_var, (1, outputs)).to(network.device).clone() if common else None,
        vector_output=like.ndim == 1,
        user_dtype=like.dtype,
        module_dtypes=dtypes_of(module),
        batches=x if isinstance(x, Batches) else None,
        shard=None if group is None else Shard.of(group, len(residual) // outputs, first),
        space=WHOLE if group is None else replicated(group),
    )


def is_common(noise_var: float | Tensor) -> bool:
    """Whether the noise is the same at every point: a number, or one per output as (1, C)."""
    return not isinstance(noise_var, Tensor) or noise_var.ndim == 0 or (noise_var.ndim == 2 and len(noise_var) == 1)


def open_network(
    module: nn.Module, x: Tensor, dtype: torch.dtype | None = None, parameters: Iterable[str] | None = None
) -> tuple[PureNetwork, int]:
    """The module as a pure function of its (chosen) parameters, checked on the first points, and its number of outputs C."""
    check_module(module)
    check_inputs(x, module)
    network = PureNetwork(module, dtype, None if parameters is None else chosen_parameters(module, parameters))
    try:
        outputs = check_outputs(lambda points: network.module(network.cast(points)), network.module, x)
    except RuntimeError as error:
        if ran_out(error):
            raise
        raise ValueError(
            f"the module cannot be called on x of shape {tuple(x.shape)} and dtype {x.dtype} (it computes in {network.dtype}): "
            f"{error}"
        ) from error
    with torch.enable_grad():
        leaves = {name: p.clone().requires_grad_() for name, p in network.anchor.items()}
        if not network(leaves, network.cast(x[:1].detach())).requires_grad:
            raise ValueError(
                "the output of the module does not depend on its trainable parameters, so its tangent kernel is zero; is its "
                "forward inside of torch.no_grad(), or its output detached?"
            )
    return network, outputs
