"""Queries and answers of a problem: check query points, and give values the shape and dtype of the user's y."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.check_data import check_finite, check_inputs
from ntkgp._system.types import MeanFunction
from ntkgp.problem.prior_mean import evaluate_mean
from ntkgp.tangent.network import PureNetwork


@dataclass(frozen=True)
class Answers:
    """What is needed to check queries and to shape answers: shape of a point, prior mean, shape and dtype of y."""

    network: PureNetwork
    point_shape: torch.Size
    outputs: int  # C
    prior_mean: MeanFunction
    prior_mean_name: str  # "zero", "network" or "function"
    vector_output: bool  # y had shape (N,)
    dtype: torch.dtype  # of y

    def checked(self, x: Tensor) -> Tensor:
        """Return the query points; raise if their shape, dtype or device does not match the training points."""
        check_inputs(x, self.network.module)
        if x.shape[1:] != self.point_shape:
            raise ValueError(f"x must have shape (M, {', '.join(map(str, self.point_shape))}) as in fit, got {tuple(x.shape)}")
        return x

    def mean_at(self, x: Tensor) -> Float[Tensor, "MC"]:
        """Return m(x), flattened point-major."""
        return evaluate_mean(self.prior_mean, x, self.outputs, self.network.dtype).flatten()

    def shaped(self, values: Float[Tensor, "MC"]) -> Tensor:
        """Give values the shape and dtype of the user's y: (M,) or (M, C)."""
        values = self.cast(values).unflatten(0, (-1, self.outputs))
        return values.squeeze(1) if self.vector_output else values

    def cast(self, values: Float[Tensor, "MC *more"]) -> Float[Tensor, "MC *more"]:
        """Cast rows (one per output and query point) to the dtype of y; raise with the row if a value is not finite."""
        check_finite(values, self.outputs, f"the answer (in {values.dtype})")
        answer = values.to(self.dtype)
        check_finite(answer, self.outputs, f"the answer in {self.dtype} (the dtype of y in fit)")
        return answer

    def positive(self, covariance: Float[Tensor, "MC MC"]) -> Float[Tensor, "MC MC"]:
        """Set the negative eigenvalues of a symmetric covariance estimate to zero, and cast it to the dtype of y."""
        check_finite(covariance, self.outputs, f"the covariance (in {covariance.dtype})")
        values, vectors = torch.linalg.eigh(covariance)
        return self.cast(vectors * values.clamp_min(0) @ vectors.T)
