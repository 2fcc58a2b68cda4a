"""The regression problem that every method solves: checked, in one dtype, with residuals, noise and J(x) ready."""

import hashlib
from dataclasses import dataclass, replace

from ntkgp._system.memory import free_bytes
from ntkgp.problem.answers import Answers
from ntkgp.problem.data import Data
from ntkgp.problem.operators import Operators
from ntkgp.storage.fingerprint import dtypes_of, fingerprint
from ntkgp.tangent.network import PureNetwork


@dataclass(frozen=True)
class Problem:
    """y = m(x) + J(x)Δ + noise, Δ ~ N(0, I): the network, its data, its operators, and the shaping of answers."""

    network: PureNetwork
    data: Data
    operators: Operators
    answers: Answers
    module_dtypes: dict[str, str]  # dtype of each of the user's parameters and buffers, by name

    @property
    def outputs(self) -> int:
        """C."""
        return self.data.outputs

    @property
    def identity(self) -> dict[str, str | int | float]:
        """Values that identify this problem, however its points are distributed over ranks. Cost: one pass over the weights."""
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
        """Return the problem of the same network with other data; `changes` go to the operators."""
        operators = replace(self.operators, data=data, **{"known_jacobian": None, **changes})  # pyright: ignore[reportArgumentType]
        return replace(self, data=data, operators=operators)

    def split_if_needed(self, columns: int) -> "Problem":
        """Split vectors over the weights over the ranks if six matrices of `columns` of them are too large for one rank."""
        if self.data.shard is None:
            return self
        group, (rows, parameters) = self.data.shard.group, self.operators.shape
        memory = free_bytes(self.network.device) // 2 if group.memory is None else group.memory
        too_large = group.any(6 * 8 * min(columns, rows, parameters) * parameters > memory)
        return replace(self, operators=self.operators.split()) if too_large and group.size > 1 else self
