"""The type checker of the tests notices wrong shapes and types, in functions inside functions too, at every call."""

from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from torch import Tensor

from tests.support.typechecker import checked


def inner(rows: int) -> Callable[..., Tensor]:
    @jaxtyped(typechecker=checked)
    def product(a: Float[Tensor, "n m"], b: Float[Tensor, "m"], times: float = 1) -> Float[Tensor, "n"]:
        return times * (a @ b)[:rows]

    return product


@pytest.mark.parametrize(("time", "rows"), [("first", 3), ("again", 3), ("cut", 2)])
def test_functions_inside_functions(time: str, rows: int):
    product, a = inner(rows), torch.ones(3, 2)
    if rows == 3:
        assert product(a, torch.ones(2)).shape == (3,)
        assert product(a, torch.ones(2), 2).shape == (3,)  # an int for a float
    else:
        with pytest.raises(TypeCheckError, match="return value"):
            product(a, torch.ones(2))
    with pytest.raises(TypeCheckError, match="parameters"):
        product(a, torch.ones(3))
    with pytest.raises(TypeCheckError, match="parameters"):
        product(a, torch.ones(2), "twice")
