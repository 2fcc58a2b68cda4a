"""The points used to tune hyper-parameters, from one process or from several ranks."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ntkgp._system.check_data import check_noise
from ntkgp.distributed.group import Group
from ntkgp.problem.batches import Batches
from ntkgp.problem.gathering import gathered, noise_differs, opening
from ntkgp.problem.source import Source
from ntkgp.tuning.result import Tuned

MOST_DIFFERENT = 0.02  # of the repeated inputs have different targets: then repeated rows are copies, not replicates


def subset(source: Source, rows: int, generator: torch.Generator | None) -> Source:
    """Draw at most `rows` rows N·C of the data at random, with the noise of these points if it is per point."""
    (x, y), noise_var = source.tensors(), source.noise_var
    outputs = y.shape[1] if y.ndim == 2 else 1
    count, per_point = max(1, rows // outputs), noise_differs(noise_var)
    noise_var = check_noise(noise_var, (len(x), outputs)) if per_point else noise_var
    if len(x) <= count:
        return Source(x, y, noise_var)
    chosen = draw_indices(len(x), count, generator).to(x.device)
    return Source(x[chosen], y[chosen], noise_var[chosen.to(noise_var.device)] if per_point else noise_var)


def sample_of_ranks(group: Group, source: Source, points: int, most: int, generator: torch.Generator) -> Source:
    """Gather all points if they have at most `most` rows, else the subset that one process would draw; on every rank."""
    x, y = source.x, source.y
    outputs = opening(group, x, y)[1].shape[1:].numel()
    count = sum(len(part) for part, _ in x) if isinstance(x, Batches) else len(x)
    every, few, chosen = int(group.total(count)), max(1, points // outputs), None
    if every * outputs > most and every > few:
        chosen = draw_indices(every, few, generator)
    return Source(*gathered(group, x, y, source.noise_var, chosen=chosen))


def as_on_rank_0(found: Tuned, group: Group, noise_var: str | float | Tensor) -> Tuned:
    """Copy the result of rank 0 to all ranks: on different hardware their results may differ by rounding."""
    values = found.noise_var if isinstance(found.noise_var, Tensor) else torch.tensor(found.noise_var, dtype=torch.float64)
    shared = group.copied(values, values.device)
    prior = group.facts(found.prior_var)[0]
    with torch.no_grad():
        for tensor in [*found.module.parameters(), *found.module.buffers()]:
            tensor.copy_(group.copied(tensor, tensor.device))
    learned = shared if isinstance(found.noise_var, Tensor) else float(shared)
    return replace(found, prior_var=prior, noise_var=learned if isinstance(noise_var, str) else noise_var)


def copies_of_rows(x: Float[Tensor, "N D"], y: Float[Tensor, "N *C"]) -> Bool[Tensor, "N"]:
    """Which rows repeat an earlier row, target included, and are no independent observations.

    Where the inputs say little, rows may agree by chance. Then some rows with the same inputs have different targets, and none
    counts as a copy.
    """
    none = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    _, group = torch.unique(x, dim=0, return_inverse=True)
    count = torch.bincount(group)
    if bool((count < 2).all()):
        return none
    order = torch.argsort(group, stable=True)
    again = none.clone()  # whether a row has the inputs of an earlier one
    again[order[1:]] = group[order][1:] == group[order][:-1]
    first = order[torch.cumsum(count, dim=0) - count]  # the first row of each group
    differs = (y != y[first[group]]).reshape(len(y), -1).any(dim=1)
    groups = torch.zeros_like(count).index_add_(0, group, differs.to(count.dtype)) > 0
    replicated = groups[count > 1].double().mean()
    return none if bool(replicated > MOST_DIFFERENT) else again & ~differs


def draw_indices(every: int, count: int, generator: torch.Generator | None) -> Tensor:
    """Draw the indices of `count` of `every` points, ascending."""
    device = "cpu" if generator is None else generator.device
    return torch.randperm(every, generator=generator, device=device)[:count].sort().values.cpu()
