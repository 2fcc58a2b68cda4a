"""A table of one's own: its posterior over one or two inputs, and where the next point should go."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.apps.explorer.model.compute import network
from ntkgp.apps.explorer.model.csv_table import Table
from ntkgp.apps.explorer.model.state import State, StateError
from ntkgp.apps.tables.scaling import Scaling
from ntkgp.networks.layers import TrigonometricInputs
from ntkgp.posterior.exact.method import Exact
from ntkgp.posterior.fit import fit as fit_posterior
from ntkgp.posterior.interface import Posterior
from ntkgp.posterior.prediction import Prediction
from ntkgp.tuning.tune import tune

SLICE, MAP = 121, 41  # points along a slice, and along each side of the map
TUNED_ON = 300  # rows
MARGIN = 0.15  # how far beyond the data the pictures go, as a share of its width


@dataclass(frozen=True)
class DataModel:
    """A posterior over chosen columns, fitted on standardised values and asked in the units of the table."""

    posterior: Posterior
    inputs: Scaling
    target: Scaling
    x: Float[Tensor, "N D"]
    y: Float[Tensor, "N"]
    noise_var: float  # in units of the target's variance

    def predict(self, x: Float[Tensor, "M D"]) -> Prediction:
        """Mean, variance and noise in the units of the target."""
        return self.target.undo(self.posterior.predict(self.inputs.apply(x)))

    def box(self, margin: float = MARGIN) -> tuple[Float[Tensor, "D"], Float[Tensor, "D"]]:
        """Lowest and highest inputs, and a margin beyond them; a constant column gets the width 1."""
        low, high = self.x.amin(dim=0), self.x.amax(dim=0)
        width = torch.where(high > low, high - low, torch.ones_like(low))
        return low - margin * width, high + margin * width


def fit(state: State) -> DataModel:
    """The exact posterior of the chosen columns of the state's table, with its network.

    Noise and prior variances are those of the marginal likelihood (:func:`ntkgp.tune`) where the state says so; if not, its
    noise is taken in units of the target's variance.

    Example:
        >>> table = Table(("a", "b"), ((0.0, 1.0, 2.0, 3.0), (5.0, 7.0, 6.0, 9.0)))
        >>> model = fit(State(table=table, target="b", inputs=("a",), width=32, tuned=False))
        >>> model.predict(torch.tensor([[1.0]])).mean.round(decimals=1)
        tensor([7.], dtype=torch.float64)
    """
    if state.table is None:
        raise StateError("load a table first: a CSV file with a header and columns of numbers")
    x = torch.tensor([state.table.column(name) for name in state.inputs], dtype=torch.float64).T.contiguous()
    y = torch.tensor(state.table.column(state.target), dtype=torch.float64)
    inputs, target = Scaling.of(x), Scaling.of(y)
    scaled_x, scaled_y = inputs.apply(x), target.apply(y)
    features = TrigonometricInputs.from_data(scaled_x, margin=2 * MARGIN) if state.normalisation == "circle" else None
    module, noise_var, prior_var = network(state, x.shape[1], features), state.noise_var, 1.0
    if state.tuned:
        found = tune(module, scaled_x, scaled_y, input_scales=False, points=TUNED_ON, starts=1, steps=40)
        noise_var, prior_var = float(found.noise_var), found.prior_var
    posterior = fit_posterior(module, scaled_x, scaled_y, noise_var=noise_var, prior_var=prior_var, method=Exact())
    return DataModel(posterior, inputs, target, x, y, noise_var)


@dataclass(frozen=True)
class Slice:
    """The posterior along the first input, the second one (if any) held where it is."""

    x: Float[Tensor, "M"]
    prediction: Prediction
    near: Float[Tensor, "N"]  # how near each data point is to the slice: 1 on it, 0 a standard deviation away


def slice_of(model: DataModel, at: float | None = None) -> Slice:
    """A 1-d slice; `at` is the value of the second input, its middle when None."""
    low, high = model.box()
    x = torch.linspace(float(low[0]), float(high[0]), SLICE, dtype=torch.float64)
    if model.x.shape[1] == 1:
        return Slice(x, model.predict(x.unsqueeze(1)), torch.ones_like(model.y))
    held = float((low[1] + high[1]) / 2) if at is None else at
    points = torch.stack([x, torch.full_like(x, held)], dim=1)
    distance = (model.x[:, 1] - held).abs() / model.inputs.scale[1]
    return Slice(x, model.predict(points), (1 - distance).clamp_min(0))


@dataclass(frozen=True)
class UncertaintyMap:
    """Standard deviation of the function over two inputs: rows are the second input."""

    low: Float[Tensor, "2"]
    high: Float[Tensor, "2"]
    std: Float[Tensor, "R R"]


def uncertainty_map(model: DataModel) -> UncertaintyMap:
    """The epistemic standard deviation on a grid of 41 × 41."""
    low, high = model.box()
    std = model.predict(_lattice(low, high)).std
    return UncertaintyMap(low, high, std.view(MAP, MAP).T)


def next_point(model: DataModel) -> tuple[Float[Tensor, "D"], float]:
    """Where the next point should go: inside the range of the data, where the function is least known; and its std there.

    With the same noise everywhere this is the observation that tells most about the function, in nats.
    """
    low, high = model.box(margin=0.0)
    points = _lattice(low, high)
    std = model.predict(points).std
    best = int(std.argmax())
    return points[best], float(std[best])


def _lattice(low: Float[Tensor, "D"], high: Float[Tensor, "D"]) -> Float[Tensor, "M D"]:
    count = 4 * MAP + 1 if len(low) == 1 else MAP
    sides = [torch.linspace(float(a), float(b), count, dtype=torch.float64) for a, b in zip(low, high, strict=True)]
    return torch.cartesian_prod(*sides).reshape(-1, len(low))


def choose(table: Table, state: State) -> State:
    """The state with a new table: its last column as target, its first as input."""
    return replace(state, table=table, target=table.names[-1], inputs=(table.names[0],))
