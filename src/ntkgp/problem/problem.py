"""The regression problem that every method solves: checked, in one dtype, with residuals, noise and J(x) ready."""

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ntkgp._system.memory import by_halves, free_bytes
from ntkgp._system.settings import full_precision
from ntkgp.problem.answers import Answers
from ntkgp.problem.data import Data
from ntkgp.problem.operators import Operators
from ntkgp.storage.digest import digest, weighted_sum
from ntkgp.storage.fingerprint import dtypes_of, fingerprint
from ntkgp.tangent.network import PureNetwork

FORWARD_POINTS = 1024  # points of one forward pass


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
    def steering_dtype(self) -> torch.dtype:
        """The dtype for products that only steer: they choose a subspace, or a step that a float64 residual checks.

        That of the user's network, but at least float32.
        """
        dtypes = {getattr(torch, self.module_dtypes[name].removeprefix("torch.")) for name in self.network.anchor}
        return torch.promote_types(dtypes.pop(), torch.float32)

    @property
    def identity(self) -> dict[str, str | int | float]:
        """Values that identify this problem, however its points are distributed over ranks.

        Cost: one pass over the weights, and one forward pass over the points.
        """
        data, digests = self.data, fingerprint(self.network.module, dtypes_of(self.network.module))
        start, prior = 0 if data.shard is None else data.shard.start, self.operators.prior_variance
        inputs, outputs = self._inputs_and_outputs(start)

        def total(values: Tensor) -> float:
            return data.total(weighted_sum(values, start * self.outputs))

        def signed(values: Tensor) -> float:  # tells v from −v, also if it is large; rounding far below the noise has no weight
            return total((torch.asinh(values.double() / data.noise_std.double()) + 1).square())

        return {
            "points": data.points,
            "parameters": self.operators.parameters,
            "module": hashlib.sha256(repr(digests).encode()).hexdigest(),
            "prior_var": repr(self.operators.tangent.scales),
            "dtype": str(self.network.dtype),
            "inputs": inputs if data.shard is None else int(data.shard.group.sum(torch.tensor([inputs]))),
            "noise": total(data.noise_std),
            "residuals": signed(data.residual),
            "outputs": signed(outputs),
            "prior_variance": total(prior),
        }

    def _inputs_and_outputs(self, start: int) -> tuple[int, Tensor]:
        """Return a digest of the rank-local points, the first of which has position `start`, and f(x; θ0) at them."""
        data, inputs, outputs = self.data, 0, list[Tensor]()
        whole = [(data.x, None)] if data.batches is None else data.batches
        with torch.no_grad(), full_precision():
            for x in (part for points, _ in (whole if len(data.residual) else []) for part in points.split(FORWARD_POINTS)):
                inputs += digest(x, start * x.shape[1:].numel())
                outputs += by_halves(lambda some, x=x: self.network.initial(x[some]).flatten(), len(x))
                start += len(x)
        wrapped = (inputs + 2**63) % 2**64 - 2**63
        return wrapped, torch.cat(outputs) if outputs else data.residual

    def with_data(self, data: Data, **changes: object) -> "Problem":
        """Return the problem of the same network with other data; `changes` go to the operators."""
        operators = replace(self.operators, data=data, **{"known_rows": None, **changes})  # pyright: ignore[reportArgumentType]
        return replace(self, data=data, operators=operators)

    def split_if_needed(self, columns: int) -> "Problem":
        """Split vectors over the weights over the ranks if six matrices of `columns` of them are too large for one rank."""
        if self.data.shard is None:
            return self
        group, (rows, parameters) = self.data.shard.group, self.operators.shape
        memory = free_bytes(self.network.device) // 2 if group.memory is None else group.memory
        too_large = group.any(6 * 8 * min(columns, rows, parameters) * parameters > memory)
        return replace(self, operators=self.operators.split(group)) if too_large and group.size > 1 else self
