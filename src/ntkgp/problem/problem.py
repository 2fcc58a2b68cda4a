"""The regression problem that every method solves: checked, in one dtype, with residuals, noise and J(x) ready."""

import hashlib
from dataclasses import dataclass, replace

from ntkgp.problem.answers import Answers
from ntkgp.problem.data import Data
from ntkgp.problem.operators import Operators
from ntkgp.storage.fingerprint import dtypes_of, fingerprint
from ntkgp.tangent.network import PureNetwork


@dataclass(frozen=True)
class Problem:
    """y = m(x) + J(x)Δ + noise, Δ ~ N(0, I): the network, its data, the operators over them, and the way to answers."""

    network: PureNetwork
    data: Data
    operators: Operators
    answers: Answers
    module_dtypes: dict[str, str]  # of the user's parameters and buffers

    @property
    def outputs(self) -> int:
        """C."""
        return self.data.outputs

    @property
    def identity(self) -> dict[str, str | int | float]:
        """What tells this problem from others, for any distribution of its points over ranks. Cost: a pass over the weights."""
        data, digests = self.data, fingerprint(self.network.module, dtypes_of(self.network.module))
        return {
            "points": data.points,
            "parameters": self.operators.parameters,
            "module": hashlib.sha256(repr(digests).encode()).hexdigest(),
            "prior_var": repr(self.operators.tangent.scales),
            "dtype": str(self.network.dtype),
            "residuals": data.total(data.whitened_residual.double().square().sum()),
            "noise": data.total(data.noise_std.double().sum()),
        }

    def with_data(self, data: Data, **changes: object) -> "Problem":
        """The same network with other data; `changes` are those of the operators."""
        operators = replace(self.operators, data=data, **{"known_jacobian": None, **changes})  # pyright: ignore[reportArgumentType]
        return replace(self, data=data, operators=operators)

    def split(self) -> "Problem":
        """The same with vectors over the weights split over the ranks."""
        return replace(self, operators=self.operators.split())
