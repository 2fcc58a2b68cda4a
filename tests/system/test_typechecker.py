"""The type checker of the tests notices wrong shapes and types, in functions inside functions too, at every call."""

from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from torch import Tensor

from tests.support.typechecker import checked, repeated, switched_off


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


def test_repetitions_are_not_checked():
    product, wrong = inner(3), (torch.ones(3, 2), torch.ones(2), None)
    looked = []
    for k in repeated(range(3)):
        with pytest.raises(TypeCheckError if k == 0 else TypeError):  # the first by the checker, then by torch itself
            product(*wrong)
        looked.append(k)
    assert looked == [0, 1, 2]
    with pytest.raises(TypeCheckError):
        product(*wrong)
    with switched_off(), pytest.raises(TypeError):
        product(*wrong)
