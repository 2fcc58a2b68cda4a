"""Finding a head for a regression problem: by products with G in weight space or with the kernel, of a rank or to a width."""

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ntkgp._types import NumericalWarning
from ntkgp.linalg.head import Head
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.svd import SVDMethod
from ntkgp.problem import Problem
from ntkgp.tangent.memory import free_bytes

START = 32  # rank from which a tolerance on the bracket grows


def grow_until_tight(
    problem: Problem,
    head: Head | None,
    rtol: float,
    points: Tensor | None,
    max_rank: int,
    svd: SVDMethod,
    kernel_side: bool,
    generator: torch.Generator | None,
    progress: bool,
) -> tuple[Head, float]:
    """A head whose bracket is as tight as asked for, from one that is there or from none; and the width reached."""
    if points is None:
        picks = torch.randperm(len(problem.x), generator=generator)[:512]
        points = problem.x[picks.to(problem.x.device)]
    else:
        points = problem.checked(points)
    limit = min(max_rank, *problem.jacobian.shape)
    with tqdm(desc="finding the head", unit="pass", disable=not progress, leave=False) as bar:
        while True:
            if head is None:
                head = grow(problem, None, min(START, limit), svd, kernel_side, generator, bar)
            width = bracket_width(problem, head, points)
            bar.set_postfix(rank=head.rank, bracket=f"{width:.1e}")
            if width <= rtol or head.rank >= limit:
                break
            head = grow(problem, head, min(2 * head.rank, limit), svd, kernel_side, generator, bar)
    if width > rtol:
        warnings.warn(
            f"the bracket is {width:.2g} wide (relative) at rank {head.rank}, not {rtol:.2g}; raise max_rank, or noise_var",
            NumericalWarning,
            stacklevel=4,
        )
    return head, width


def grow(
    problem: Problem,
    head: Head | None,
    rank: int,
    svd: SVDMethod,
    kernel_side: bool,
    generator: torch.Generator | None,
    bar: tqdm,
) -> Head:
    """A head of `rank` directions; those already found are kept, and only new ones are looked for."""
    rows, parameters = problem.jacobian.shape
    device = problem.network.device
    v = torch.zeros(parameters, 0, dtype=torch.float64, device=device) if head is None else head.v
    image = v if head is None else head.image
    extra = rank - v.shape[1]
    if kernel_side:
        kernel, left = problem.kernel, problem.whitened.matmat(v)

        def rest_of_kernel(u: Tensor) -> Tensor:
            bar.update()
            return kernel @ u - left @ (left.T @ u)

        operator = Operator((rows, rows), rest_of_kernel, rest_of_kernel, torch.float64, device)
        new = problem.whitened.rmatmat(svd.subspace(operator, extra, generator))
    else:
        # Float32 is enough to steer a subspace, except when it is to be the whole row space to the last digit.
        dtype = torch.float64 if rank == min(rows, parameters) else torch.float32
        steer = v.to(dtype)

        def rest_of_normal(z: Tensor) -> Tensor:
            z = problem.normal(z - steer @ (steer.T @ z))
            bar.update()
            return z - steer @ (steer.T @ z)

        operator = Operator((parameters, parameters), rest_of_normal, rest_of_normal, dtype, device)
        with _tensor_cores():
            new = svd.subspace(operator, extra, generator).double()
    for _ in range(2):
        new = torch.linalg.qr(new - v @ (v.T @ new)).Q
    new = new[:, : min(rows, parameters) - v.shape[1]]
    basis, images = torch.cat([v, new], dim=1), torch.cat([image, problem.normal(new)], dim=1)
    return Head.of(problem.normal, basis, images, problem.trace, rank)


def kernel_side(problem: Problem, columns: int) -> bool:
    """Whether to look for the head with J̃J̃ᵀ written out, by counted cost: if it fits, and if forming it pays.

    Some four products are made: on the weight side each takes 2·NC·P multiplications a column, with the kernel (NC)² after
    the N²/2 comparisons of points that form it. The kernel is float64, which counts twice beside float32 factors.
    """
    rows, parameters = problem.jacobian.shape
    fits = 4 * 8 * rows**2 < free_bytes(problem.network.device)
    forming = problem.points**2 / 2 * problem.tangent.chunk(problem.network.cast(problem.x[:1])).kernel_operations
    weight = 2 if problem.network.dtype == torch.float32 else 1
    return fits and weight * (forming + 4 * columns * rows**2) < 4 * columns * 2 * rows * parameters


def bracket_width(problem: Problem, head: Head, points: Tensor) -> float:
    """The widest (upper − lower)/upper at some points."""
    jacobian = problem.tangent.at(points)
    prior = jacobian.diag().double()
    upper = prior - jacobian.matmat(head.explained()).square().sum(dim=1)
    return float((1 - head.lower(jacobian.matmat(head.v), prior) / upper.clamp_min(1e-300)).max())


@contextlib.contextmanager
def _tensor_cores() -> Iterator[None]:
    """Float32 products on the GPU's tensor cores (TF32): enough to steer a subspace, not to certify it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
