"""A table of one's own: its posterior over one or two inputs, and where the next point should go."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp.apps.explorer.model.compute import network
from ntkgp.apps.explorer.model.csv_table import Table
from ntkgp.apps.explorer.model.state import State, StateError
from ntkgp.apps.tables.fitting import NoiseGiven, fit_table
from ntkgp.apps.tables.model import TableModel
from ntkgp.apps.tables.options import TableOptions
from ntkgp.apps.tables.scaling import Scaling
from ntkgp.networks.layers import TrigonometricInputs
from ntkgp.posterior.prediction import Prediction

SLICE, MAP = 121, 41  # points along a slice, and along each side of the map
TUNED_ON = 300  # rows, so that the page answers within seconds
MARGIN = 0.15  # how far beyond the data the pictures go, as a share of its width


@dataclass(frozen=True)
class DataModel:
    """The table model of the chosen columns, with the rows it was fitted to."""

    model: TableModel
    x: Float[Tensor, "N D"]
    y: Float[Tensor, "N"]

    @property
    def noise_std(self) -> float:
        """In the units of the target."""
        assert self.model.noise_var is not None
        return float(self.model.noise_var) ** 0.5

    def predict(self, x: Float[Tensor, "M D"]) -> Prediction:
        """Mean, variance and noise in the units of the target."""
        return self.model.predict(x)

    def box(self, margin: float = MARGIN) -> tuple[Float[Tensor, "D"], Float[Tensor, "D"]]:
        """Lowest and highest inputs, and a margin beyond them; a constant column gets the width 1."""
        low, high = self.x.amin(dim=0), self.x.amax(dim=0)
        width = torch.where(high > low, high - low, torch.ones_like(low))
        return low - margin * width, high + margin * width


def fit(state: State) -> DataModel:
    """The table model of the chosen columns of the state's table, with the network of the page.

    ``NTKGPRegressor(module=network, points=300)`` fits the same model. Noise, scales and prior variances are learned where the
    state says so; if not, its noise is taken in units of the target's variance.

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
    options = TableOptions(module=page_network(state, x), points=TUNED_ON, tune=state.tuned, seed=state.seed)
    known = state.noise_var * Scaling.of(y).scale.square().reshape(1, 1)
    return DataModel(fit_table(x, y, options, NoiseGiven() if state.tuned else NoiseGiven(known=known)), x, y)


def page_network(state: State, x: Float[Tensor, "N D"]) -> nn.Module:
    """The network of the page for these inputs, standardised; on a circle its range covers what the pictures show."""
    if state.normalisation != "circle":
        return network(state, x.shape[1])
    return network(state, x.shape[1], TrigonometricInputs.from_data(Scaling.of(x).apply(x), margin=2 * MARGIN))


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
    distance = (model.x[:, 1] - held).abs() / model.model.inputs.scale[1]
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
