"""The user's table: its posterior over one or two inputs, and where to observe the next point."""

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

SLICE, MAP = 121, 41  # number of points along a slice, and along each side of the map
TUNING_ROWS = 300  # rows used for tuning, so that the page answers within seconds
MARGIN = 0.15  # margin of the plots around the data, as a fraction of the range of the data


@dataclass(frozen=True)
class DataModel:
    """The table model of the chosen columns, and its training rows."""

    model: TableModel
    x: Float[Tensor, "N D"]
    y: Float[Tensor, "N"]

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise, in the units of the target."""
        assert self.model.noise_var is not None
        return float(self.model.noise_var) ** 0.5

    def predict(self, x: Float[Tensor, "M D"]) -> Prediction:
        """Mean, variance and noise in the units of the target."""
        return self.model.predict(x)

    def box(self, margin: float = MARGIN) -> tuple[Float[Tensor, "D"], Float[Tensor, "D"]]:
        """Lowest and highest inputs with a margin; a constant column counts as width 1."""
        low, high = self.x.amin(dim=0), self.x.amax(dim=0)
        width = torch.where(high > low, high - low, torch.ones_like(low))
        return low - margin * width, high + margin * width


def fit(state: State) -> DataModel:
    """The table model of the chosen columns of the state's table, with the network of the page.

    ``NTKGPRegressor(module=page_network, points=300)`` fits the same model. If `state.tuned`, noise, scales and prior variances
    are learned; otherwise the noise variance is `state.noise_var` times the variance of the target.

    Example:
        >>> table = Table(("a", "b"), ((0.0, 1.0, 2.0, 3.0), (5.0, 7.0, 6.0, 9.0)))
        >>> model = fit(State(table=table, target="b", inputs=("a",), width=32, tuned=False))
        >>> model.predict(torch.tensor([[1.0]])).mean.round(decimals=1)
        tensor([7.], dtype=torch.float64)
    """
    if state.table is None:
        raise StateError("load a table first: choose a CSV file with a header and columns of numbers")
    x = torch.tensor([state.table.column(name) for name in state.inputs], dtype=torch.float64).T.contiguous()
    y = torch.tensor(state.table.column(state.target), dtype=torch.float64)
    options = TableOptions(module=page_network(state, x), points=TUNING_ROWS, tune=state.tuned, seed=state.seed)
    known = state.noise_var * Scaling.of(y).scale.square().reshape(1, 1)
    return DataModel(fit_table(x, y, options, NoiseGiven() if state.tuned else NoiseGiven(known=known)), x, y)


def page_network(state: State, x: Float[Tensor, "N D"]) -> nn.Module:
    """The network of the page for these inputs, which it expects standardised; a circle covers the range of the plots."""
    if state.normalisation != "circle":
        return network(state, x.shape[1])
    return network(state, x.shape[1], TrigonometricInputs.from_data(Scaling.of(x).apply(x), margin=2 * MARGIN))


@dataclass(frozen=True)
class Slice:
    """The posterior along the first input, with the second input (if any) fixed."""

    x: Float[Tensor, "M"]
    prediction: Prediction
    near: Float[Tensor, "N"]  # closeness of each data point to the slice: 1 on it, 0 at one standard deviation or more


def slice_of(model: DataModel, at: float | None = None) -> Slice:
    """A 1-d slice; `at` is the value of the second input, None for the middle of its range."""
    low, high = model.box()
    x = torch.linspace(float(low[0]), float(high[0]), SLICE, dtype=torch.float64)
    if model.x.shape[1] == 1:
        return Slice(x, model.predict(x.unsqueeze(1)), torch.ones_like(model.y))
    fixed = float((low[1] + high[1]) / 2) if at is None else at
    points = torch.stack([x, torch.full_like(x, fixed)], dim=1)
    distance = (model.x[:, 1] - fixed).abs() / model.model.inputs.scale[1]
    return Slice(x, model.predict(points), (1 - distance).clamp_min(0))


@dataclass(frozen=True)
class UncertaintyMap:
    """Epistemic standard deviation over two inputs; rows of `std` follow the second input."""

    low: Float[Tensor, "2"]
    high: Float[Tensor, "2"]
    std: Float[Tensor, "R R"]


def uncertainty_map(model: DataModel) -> UncertaintyMap:
    """The epistemic standard deviation on a grid of 41 × 41."""
    low, high = model.box()
    std = model.predict(_lattice(low, high)).std
    return UncertaintyMap(low, high, std.view(MAP, MAP).T)


def next_point(model: DataModel) -> tuple[Float[Tensor, "D"], float]:
    """The best next point and the epistemic std there: inside the range of the data, where that std is largest.

    If the noise is the same everywhere, this observation has the largest information gain about the function.
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
    """The state with a new table; the last column becomes the target, the first one the input."""
    return replace(state, table=table, target=table.names[-1], inputs=(table.names[0],))
