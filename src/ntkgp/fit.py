"""The front door."""

import contextlib
import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ntkgp._checks import check_generator, check_module
from ntkgp._types import MeanFunction
from ntkgp.batches import Batches
from ntkgp.checkpoint import Checkpoint
from ntkgp.distributed import Group
from ntkgp.exact import Exact
from ntkgp.fingerprint import dtypes_of, fingerprint
from ntkgp.lowrank import LowRank
from ntkgp.pose import pose
from ntkgp.posterior import Posterior
from ntkgp.sharded import differs, gathered
from ntkgp.trained import TrainedNetworks

Method = Exact | LowRank | TrainedNetworks


def fit(
    module: nn.Module,
    x: Tensor | Iterable[tuple[Tensor, Tensor]],
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
    """The posterior of the network's Gaussian process, y = m(x) + J(x)Δ + ε with Δ ~ N(0, prior_var), ε ~ N(0, noise_var).

    The module is copied and never changed. Memory and time are those of the method.

    Args:
        module: any ``nn.Module`` that maps (N, ...) to (N,) or (N, C), deterministic and row by row.
        x: training points, (N, ...); or a re-iterable of (x, y) batches, such as a DataLoader, for data that does not fit.
        y: training targets, (N,) or (N, C); answers come in the same shape and dtype. None when x gives batches.
        noise_var: variance of the observation noise: a number, one per point (N,), one per output (1, C), or one per point and
            output (N, C).
        method: :class:`Exact`, :class:`LowRank` or :class:`TrainedNetworks`; None takes the first while N·C is small
            (8,000; 30,000 on a GPU) and ``LowRank(rank=256, tail=16)`` beyond.
        prior_mean: None for zero (the paper's shifted targets), a function of x, or :func:`network_mean` for f(x; θ0).
        prior_var: prior variance of the weights' displacement: a number, or one per module name.
        parameters: names of the modules whose parameters the tangent is taken by (``last_layer(module)`` for the last one);
            None for all that are trainable.
        generator: source of randomness of methods that need it; the global one when None.
        progress: show a progress bar.
        group: several processes at one fit, each with its own shard of x and y (and of `noise_var`, where that differs from
            point to point): a :class:`Group`, or a process group of ``torch.distributed``. All call ``fit`` with the same
            module and options, and get the posterior of all data. Randomness is that of rank 0's generator. `Exact` and
            `TrainedNetworks` gather all points on every rank. docs/distributed.md has the costs.
        checkpoint: a folder, or a :class:`Checkpoint`, from which `LowRank` and `TrainedNetworks` go on if they were stopped.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(in_features=1, width=64, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
        >>> posterior = ntkgp.fit(net, x, torch.sin(3 * x[:, 0]), noise_var=0.01)
        >>> p = posterior.predict(torch.tensor([[0.5], [3.0]]))
        >>> bool(p.std[0] < 0.2 and p.std[1] > 5)  # sure among the data, unsure away from it
        True
    """
    group = Group(group) if group is not None and not isinstance(group, Group) else group
    checkpoint = Checkpoint(checkpoint) if checkpoint is not None and not isinstance(checkpoint, Checkpoint) else checkpoint
    with contextlib.nullcontext() if group is None else group.together(), _resumable(checkpoint):
        check_module(module)
        check_generator(generator)
        data = as_data(module, x, y)
        method = choose_method(module, data, y, group) if method is None else method
        if not isinstance(method, Method):
            raise TypeError(
                f"method must be Exact(...), LowRank(...) or TrainedNetworks(...), got {method!r}; add parentheses?"
            )
        if checkpoint is not None and isinstance(method, Exact):
            raise ValueError("checkpoint is for LowRank and TrainedNetworks; Exact() has nothing to go on from")
        shared = None  # whom the rows of the problem are shared with
        if group is not None:
            generator = group.shared(generator)
            _check_same(group, module, method, noise_var, prior_var, parameters, checkpoint)
            if isinstance(method, LowRank):
                shared = group
            else:
                limit = _limit(next(module.parameters()).device) if isinstance(method, Exact) else None
                data, y, noise_var = gathered(group, data, y, noise_var, limit)
        elif isinstance(data, Batches) and not isinstance(method, LowRank):
            data, y = data.joined()  # these need all points at once
        problem = pose(
            module, data, y, noise_var=noise_var, prior_mean=prior_mean, prior_var=prior_var, dtype=method.dtype,
            parameters=parameters, group=shared,
        )  # fmt: skip
        if isinstance(method, Exact):
            return method.fit(problem)
        if isinstance(method, LowRank):
            return method.fit(problem, generator, progress, checkpoint)
        return method.fit(problem, generator, progress, checkpoint, group)


@contextlib.contextmanager
def _resumable(checkpoint: Checkpoint | None) -> Iterator[None]:
    """Who stops a fit by hand is told how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        if checkpoint is None:
            raise
        raise KeyboardInterrupt(f"stopped; fit again with checkpoint={str(checkpoint.folder)!r} to go on from there") from error


def _check_same(
    group: Group,
    module: nn.Module,
    method: Method,
    noise_var: float | Tensor,
    prior_var: float | Mapping[str, float],
    parameters: Iterable[str] | None,
    checkpoint: Checkpoint | None,
) -> None:
    """What all ranks must agree on; noise per point is each one's own."""
    digest = hashlib.sha256(repr(fingerprint(module, dtypes_of(module))).encode()).hexdigest()
    common = "per point" if differs(group, noise_var) else repr(noise_var)
    group.agree(
        module=f"{type(module).__name__} with weights {digest[:16]}", method=repr(method), noise_var=common,
        prior_var=repr(prior_var), parameters=repr(parameters), checkpoint=repr(checkpoint), torch=torch.__version__,
    )  # fmt: skip


def as_data(module: nn.Module, x: Tensor | Iterable[tuple[Tensor, Tensor]], y: Tensor | None) -> Tensor | Batches:
    """The points as they are, or as checked batches when they are not a tensor."""
    if isinstance(x, Tensor):
        if y is None:
            raise ValueError("y is missing; pass the targets, or x as an iterable of (x, y) batches")
        return x
    if y is not None or not isinstance(x, Iterable):
        kind = type(x).__name__
        raise TypeError(f"x must be a torch.Tensor, got {kind}; use torch.as_tensor(x), or pass (x, y) batches and no y")
    return Batches(x, next(module.parameters()).device)


def choose_method(module: nn.Module, data: Tensor | Batches, y: Tensor | None, group: Group | None = None) -> Method:
    """`Exact` while a dense factorisation takes seconds (two N·C × N·C matrices of float64), `LowRank` beyond."""
    if isinstance(data, Batches):
        rows = sum(batch.numel() for _, batch in data)
    else:
        rows = y.numel() if isinstance(y, Tensor) else len(data)
    rows = rows if group is None else int(group.total(rows))
    return Exact() if rows <= _limit(next(module.parameters()).device) else LowRank(rank=256, tail=16)


def _limit(device: torch.device) -> int:
    """Rows N·C of a dense factorisation: it takes seconds, and its three matrices half of a GPU at most."""
    if device.type != "cuda":
        return 8_000
    return min(30_000, math.isqrt(torch.cuda.get_device_properties(device).total_memory // (2 * 3 * 8)))
