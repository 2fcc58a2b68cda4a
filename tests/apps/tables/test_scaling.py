"""Columns far from zero are standardised as exactly as float64 stores them; only constant columns are not."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from ntkgp.apps.tables.fitting import fit_table
from ntkgp.apps.tables.options import TableOptions
from ntkgp.apps.tables.scaling import Scaling
from ntkgp.distributed.group import Group


class Alone(Group):
    """A group of one rank, which sends nothing."""

    def __init__(self) -> None:
        pass

    def sum(self, values: Tensor) -> Tensor:
        return values

    def total(self, value: float) -> float:
        return value

    def gather(self, values: Tensor) -> list[Tensor]:
        return [values]


HOW = {"one process": Scaling.of, "ranks": lambda values: Scaling.of_all(values, Alone())}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("offset", "spread"), [(1.7e18, 4e5), (-1.7e18, 4e5), (1e13, 1.0), (0.0, 1e-30), (1.0, 1e-13), (1e16, 1e4)]
)
def test_columns_far_from_zero(offset: float, spread: float, how: str):
    """Nanosecond timestamps of 0.4 ms, for example. The oracle computes with fractions."""
    column = offset + spread * torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = [Fraction(value) for value in column.tolist()]
    center = sum(exact) / len(exact)
    scale = float(sum((value - center) ** 2 for value in exact) / len(exact)) ** 0.5
    found = HOW[how](column.unsqueeze(1))
    spacing = torch.finfo(torch.float64).eps * max(abs(offset), spread)
    assert abs(Fraction(float(found.center)) - center) <= spacing
    assert float(found.scale) == pytest.approx(scale, rel=1e-3, abs=0)
    assert float(found.apply(column.unsqueeze(1)).abs().max()) < 2  # a uniform column ends at the square root of 3


CONSTANT = [0.0, 0.1, -3.0, 1e-300, 1e14, 1.7e18, 1e300]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("value", CONSTANT)
def test_constant_columns(value: float, how: str):
    column = torch.full((1001, 1), value, dtype=torch.float64)
    found = HOW[how](column)
    assert float(found.scale) == (1.0 if abs(value) < 1e15 else pytest.approx(4 * torch.finfo(torch.float64).eps * value))
    assert float(found.apply(column).abs().max()) < 1


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("size", [1.0, 1e18])
def test_rounding_errors_are_no_spread(size: float, how: str):
    column = size * torch.tensor([[0.3], [0.1 + 0.2], [0.3]], dtype=torch.float64)
    assert float(column.std()) > 0
    assert float(HOW[how](column).apply(column).abs().max()) < 1


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("size", [1e-120, 1e-150, 1e-300])
def test_columns_whose_squares_underflow(size: float, how: str):
    """They are scaled like others, but predictions of such targets would have no variance: refused."""
    values = size * torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64).repeat(100, 1)
    found = HOW[how](values)
    assert float(found.scale) == pytest.approx(size * float(torch.tensor([1.0, 2.0, 4.0]).std(correction=0)), rel=1e-6, abs=0)
    y = torch.randn(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    options = TableOptions(width=2, warm_networks=0, steps=1, starts=1)
    assert fit_table(values, y, options).predict(values[:2]).mean.isfinite().all()
    if size < 1e-145:
        with pytest.raises(ValueError, match=r"the targets have a std of .*, and its square underflows; rescale them"):
            fit_table(values, size * y, options)


def test_a_column_may_hold_small_and_large_numbers():
    values = torch.tensor([[1e-200, 1.0], [3e-200, 3.0]], dtype=torch.float64)
    assert torch.allclose(Scaling.of(values).apply(values), torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=torch.float64))
