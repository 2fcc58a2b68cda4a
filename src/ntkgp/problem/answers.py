"""The answers of a problem: queries checked on the way in, values shaped as the user's y on the way out."""

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
    """How queries come in and values go out: the shape of a point, the prior mean, the shape and dtype of y."""

    network: PureNetwork
    point_shape: torch.Size
    outputs: int  # C
    prior_mean: MeanFunction
    prior_mean_name: str  # "zero", "network" or "function"
    vector_output: bool  # y had shape (N,)
    dtype: torch.dtype  # of y

    def checked(self, x: Tensor) -> Tensor:
        """Query points, checked against the training points."""
        check_inputs(x, self.network.module)
        if x.shape[1:] != self.point_shape:
            raise ValueError(f"x must have shape (M, {', '.join(map(str, self.point_shape))}) as in fit, got {tuple(x.shape)}")
        return x

    def mean_at(self, x: Tensor) -> Float[Tensor, "MC"]:
        """m(x), flattened point-major."""
        return evaluate_mean(self.prior_mean, x, self.outputs, self.network.dtype).flatten()

    def shaped(self, values: Float[Tensor, "MC"]) -> Tensor:
        """As the user's y: (M,) or (M, C), in its dtype."""
        values = self.cast(values).unflatten(0, (-1, self.outputs))
        return values.squeeze(1) if self.vector_output else values

    def cast(self, values: Float[Tensor, "MC *more"]) -> Float[Tensor, "MC *more"]:
        """Rows for each output at each query point, in the dtype of y: finite, or an error that says where they are not."""
        check_finite(values, self.outputs, f"the answer (in {values.dtype})")
        answer = values.to(self.dtype)
        check_finite(answer, self.outputs, f"the answer in {self.dtype}, the dtype of y at the fit,")
        return answer

    def positive(self, covariance: Float[Tensor, "MC MC"]) -> Float[Tensor, "MC MC"]:
        """A symmetric estimate of a covariance without its negative part, as an answer."""
        check_finite(covariance, self.outputs, f"the covariance (in {covariance.dtype})")
        values, vectors = torch.linalg.eigh(covariance)
        return self.cast(vectors * values.clamp_min(0) @ vectors.T)
