"""The main function: fit a posterior."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ntkgp._system.check_module import chosen_parameters
from ntkgp._system.check_options import check_generator
from ntkgp._system.settings import in_own_settings
from ntkgp._system.types import MeanFunction
from ntkgp.distributed.group import Group
from ntkgp.posterior.choice.choose import choose_method, settle
from ntkgp.posterior.interface import Posterior
from ntkgp.posterior.method import Method, Run, check_method, check_resumes
from ntkgp.problem.build import build_problem
from ntkgp.problem.source import Source, UserData
from ntkgp.storage.checkpoint import Checkpoint, resume_hint


@in_own_settings(gradients=True)
def fit(
    module: nn.Module,
    x: UserData,
    y: Tensor | None = None,
    *,
    noise_var: float | Tensor,
    method: Method | None = None,
    prior_mean: MeanFunction | None = None,
    prior_var: float | Mapping[str, float] = 1.0,
    parameters: Iterable[str] | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    group: Group | dist.ProcessGroup | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
) -> Posterior:
    """Fit the posterior of the network's Gaussian process, y = m(x) + J(x)Δ + ε, Δ ~ N(0, prior_var), ε ~ N(0, noise_var).

    The module is copied and never changed. Cost and memory depend on the method.

    Args:
        module: any ``nn.Module`` that maps (N, ...) to (N,) or (N, C), deterministic and row by row.
        x: training points, (N, ...); or a re-iterable of (x, y) batches, such as a DataLoader, if the data does not fit.
        y: training targets, (N,) or (N, C); answers have the same shape and dtype. None if x gives batches.
        noise_var: variance of the observation noise: a number, one per point (N,), one per output (1, C), or both (N, C).
        method: :class:`Exact`, :class:`LowRank` or :class:`TrainedNetworks`. None takes :class:`Exact` wherever one of its
            matrices, N·C × N·C or P × P, fits the memory, unless :class:`LowRank` takes less work; ``posterior.choice`` says
            what was chosen and why.
        prior_mean: None for zero (the paper's shifted targets), a function of x, or :func:`network_mean` for f(x; θ0). The
            function gets a copy of x, and its value at a point must not depend on the other points; 16 points are checked.
        prior_var: prior variance of the weights' displacement: a number, or one per module name.
        parameters: names of the modules whose parameters enter the tangent (``last_layer(module)`` for the last layer only);
            None for all trainable parameters.
        generator: random numbers for methods that need them; torch's global generator if None.
        progress: show a progress bar.
        group: a :class:`Group`, or a process group of ``torch.distributed``, for a fit by several processes. Each passes its
            own shard of x and y (and of `noise_var`, if it is per point) with the same module and options, and gets the
            posterior of all data. Random numbers come from rank 0's generator. `TrainedNetworks` and `Exact` over the
            observations gather all points on every rank. docs/distributed.md lists the costs.
        checkpoint: a folder, or a :class:`Checkpoint`, from which an interrupted fit resumes; not for `Exact` over the
            observations.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(in_features=1, width=64, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
        >>> posterior = ntkgp.fit(net, x, torch.sin(3 * x[:, 0]), noise_var=0.01)
        >>> p = posterior.predict(torch.tensor([[0.5], [3.0]]))
        >>> bool(p.std[0] < 0.2 and p.std[1] > 5)  # certain near the data, uncertain far from it
        True
    """
    group, checkpoint = Group.of(group), Checkpoint.of(checkpoint)
    with contextlib.nullcontext() if group is None else group.together(), resume_hint(checkpoint):
        check_generator(generator)
        source = Source.of(module, x, y, noise_var, group)
        parameters = None if parameters is None else sorted(chosen_parameters(module, parameters))
        choose = choose_method if method is None else partial(settle, check_method(method))
        method, why = choose(module, source, parameters)
        check_resumes(method, checkpoint)
        generator = generator if group is None else group.shared(generator)
        source.agree(module, method=method, prior_var=prior_var, parameters=parameters, checkpoint=checkpoint)
        if not method.takes_shards:
            source = source.whole(method.most_rows(next(module.parameters()).device))
        prior = {"prior_mean": prior_mean, "prior_var": prior_var, "parameters": parameters}
        problem = build_problem(module, source, dtype=method.dtype, **prior)
        return method.fit(problem, Run(generator, progress, checkpoint, group, why))
