"""The two views of a network at some points: a kernel, or products with J(x); and what both come from."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor

from ntkgp.tangent.layout import ParameterLayout
from ntkgp.tangent.network import PureNetwork


class KernelRows(ABC):
    """The kernel at some points: all that an exact posterior needs from a network."""

    @abstractmethod
    def gram(self) -> Float[Tensor, "NC NC"]:
        """K(x, x)."""

    @abstractmethod
    def extended(self, more: Any) -> "KernelRows":
        """Append the points of `more`."""

    @abstractmethod
    def cross(self, other: Any) -> Float[Tensor, "NC MC"]:
        """K(x, x′), where x′ are the points of `other`."""

    @abstractmethod
    def diag(self) -> Float[Tensor, "NC"]:
        """The diagonal of K(x, x)."""


class TangentKernel(ABC):
    """A network with prior variances: what it is at points x. Every kind has a kernel; only finite networks have J(x)."""

    network: PureNetwork
    outputs: int  # C
    scales: dict[str, float]  # prior standard deviation of each parameter

    @property
    @abstractmethod
    def layout(self) -> ParameterLayout:
        """The flat order of the parameters."""

    @property
    @abstractmethod
    def by_autodiff(self) -> dict[str, str]:
        """The parameters that autodiff differentiates, each with the reason."""

    @abstractmethod
    def at(self, x: Tensor) -> KernelRows:
        """The kernel at x."""


class KernelShares(ABC):
    """The kernels K_g of groups of parameters at n points: K = Σ_g v_g K_g, v_g the prior variance of a group."""

    @abstractmethod
    def matrix(self, prior_var: Float[Tensor, "G"]) -> Float[Tensor, "nC nC"]:
        """Σ_g v_g K_g, as a new matrix."""

    @abstractmethod
    def sizes(self) -> Float[Tensor, "G"]:
        """The mean diagonal entry of each K_g."""

    @abstractmethod
    def backward(self, prior_var: Float[Tensor, "G"], weights: Float[Tensor, "nC nC"]) -> Float[Tensor, "G"]:
        """⟨weights, K_g⟩ of each group; `weights` is symmetric.

        Also adds the gradient of ⟨weights, Σ_g v_g K_g⟩ to the settings of the network that ask for gradients.
        """


class JacobianRows(ABC):
    """Products with J(x) at some points: all that matrix-free methods and trained networks need."""

    shape: tuple[int, int]  # N·C and P

    @abstractmethod
    def matmat(self, v: Float[Tensor, "p S"]) -> Float[Tensor, "nC S"]:
        """J v."""

    @abstractmethod
    def rmatmat(self, u: Float[Tensor, "nC S"]) -> Float[Tensor, "p S"]:
        """Jᵀ u."""

    @abstractmethod
    def normal(self, v: Float[Tensor, "p S"], weights: Float[Tensor, "nC"]) -> Float[Tensor, "p S"]:
        """Jᵀ diag(weights) J v."""

    @abstractmethod
    def add_normal_matrix(
        self,
        out: Float[Tensor, "P P"],
        weights: Float[Tensor, "nC"],
        skip: int = 0,
        done: Callable[[int], object] | None = None,
    ) -> None:
        """Add Jᵀ diag(weights) J to the lower triangle of `out`, which already contains the first `skip` points.

        Calls `done` with the number of points after each block.
        """

    @abstractmethod
    def diag(self) -> Float[Tensor, "nC"]:
        """The diagonal of J Jᵀ."""
