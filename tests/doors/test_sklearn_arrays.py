"""The estimator takes numbers however they lie in memory, and says what it cannot take."""

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from tests.doors.test_sklearn import data, quick

pytestmark = pytest.mark.filterwarnings("ignore::ntkgp.NumericalWarning")


class ArrayLike:
    """Not an array, but it can make one, as data frames do."""

    def __init__(self, values: np.ndarray):
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.values, dtype=dtype)


def read_only(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


# The same numbers in other clothes.
CLOTHES: dict[str, Any] = {
    "reversed in memory": lambda a: a[::-1].copy()[::-1],
    "reversed along all axes": lambda a: np.flip(np.flip(a).copy()),
    "every second of a longer one": lambda a: np.repeat(a, 2, axis=0)[::2],
    "in Fortran's order": np.asfortranarray,
    "in the other byte order": lambda a: a.astype(a.dtype.newbyteorder()),
    "read-only": read_only,
    "objects": lambda a: a.astype(object),
    "lists": lambda a: a.tolist(),
    "array-like": ArrayLike,
    "long doubles": lambda a: a.astype(np.longdouble),
    "tensors": torch.as_tensor,
    "decimals": lambda a: np.vectorize(Decimal, otypes=[object])(a),
}


@pytest.mark.parametrize("clothes", CLOTHES)
@pytest.mark.parametrize("targets", [0, 2])
def test_arrays_in_any_layout_give_the_same_model(clothes: str, targets: int):
    X, y = data(20, targets)
    noise, other = np.square(y / 100) + 1, CLOTHES[clothes]
    plain, model = (quick(steps=2).fit(*some) for some in ((X, y, noise), (other(X), other(y), other(noise))))
    expected = plain.predict(X, return_std=True, noise_var=noise)
    for a, b in zip(expected, model.predict(other(X), return_std=True, noise_var=other(noise)), strict=True):
        assert np.array_equal(a, b)
    assert np.array_equal(plain.sample_y(X, noise_var=noise), model.sample_y(other(X), noise_var=other(noise)))


def test_points_in_another_order():
    X, y = data(20)
    model = quick(steps=2).fit(X, y)
    np.testing.assert_allclose(model.predict(X[::-1]), model.predict(X)[::-1], rtol=1e-12)


def test_nothing_is_written_into_the_users_arrays():
    X, y = data(20)
    kept = X.copy(), y.copy()
    model = quick(steps=2).fit(X, y)
    before = model.predict(X)
    X += 1
    assert np.array_equal(model.predict(kept[0]), before)
    assert np.array_equal(X, kept[0] + 1)
    assert np.array_equal(y, kept[1])


TEXT = np.array(list("ab" * 5))


@pytest.mark.parametrize(("y", "words"), [
    (TEXT, "y must hold numbers, got text such as 'a'"),
    (TEXT.tolist(), "y must hold numbers, got text such as 'a'"),
    (TEXT.astype(object), "y must hold numbers, got text such as 'a'"),
    (TEXT.astype("S"), "y must hold numbers, got text such as b'a'"),
    (["1.5"] * 10, "y must hold numbers, got text such as '1.5'"),
    (np.array([1.0] * 9 + ["many"], dtype=object), "y must hold numbers, got text such as 'many'"),
    (np.stack([TEXT, TEXT], axis=1), "y must hold numbers, got text"),
    (np.arange(10).astype("M8[D]"), r"y must hold numbers, got datetime64\[D\]"),
    (np.zeros(10, dtype=[("a", float)]), "y must hold numbers, got"),
    ([10**400] * 10, r"y holds a number too large for float64, whose largest is 1\.8e308; rescale y"),
    (np.array([None] * 10), "y holds NaN or infinity in row 0"),
    (scipy.sparse.csr_matrix(np.ones((10, 2))), r"y must be a dense array, got a sparse csr_matrix; use y\.toarray\(\)"),
])  # fmt: skip
def test_targets_that_are_no_numbers(y: Any, words: str):
    with pytest.raises(ValueError, match=words):
        quick(steps=2).fit(data(10)[0], y)


DAYS = np.arange(30).reshape(10, 3)


@pytest.mark.parametrize(("X", "kind", "words"), [
    (DAYS.astype("M8[D]"), ValueError, r"X must hold numbers, got datetime64\[D\]; convert it to numbers"),
    (np.where(DAYS == 4, np.datetime64("NaT"), DAYS.astype("M8[D]")), ValueError, "X must hold numbers, got datetime64"),
    (DAYS.astype("m8[s]"), ValueError, r"X must hold numbers, got timedelta64\[s\]"),
    ([[np.datetime64("NaT")] * 3] * 10, ValueError, "X must hold numbers, got datetime64"),
    ([[1.0, 2.0, np.timedelta64(3, "s")]] * 10, ValueError, r"X must hold numbers, got timedelta64\[s\]"),
    (DAYS.astype(str), ValueError, "X must hold numbers, got text such as '0'"),
    ([[10**400] * 3] * 10, ValueError, "X holds a number too large for float64"),
    (np.array([[{}] * 3] * 10), TypeError, "X must hold numbers, got objects that are none: .*dict"),
])  # fmt: skip
def test_features_that_are_no_numbers(X: Any, kind: type[Exception], words: str):
    numbers, y = data(10)
    with pytest.raises(kind, match=words):
        quick(steps=2).fit(X, y)
    with pytest.raises(kind, match=words):
        quick(steps=2).fit(numbers, y).predict(X)


@pytest.mark.parametrize("noise", [None, [0.1], True, 1j, np.array([0.1]), {}])
def test_noise_that_is_no_number(noise: Any):
    with pytest.raises(TypeError, match=r"noise_var must be 'tuned' or a positive number, got .*; pass one per observation to"):
        quick(noise_var=noise).fit(*data(10))


@pytest.mark.parametrize("noise", [np.array(0.1), np.float32(0.1), torch.tensor(0.1)])
def test_noise_that_is_a_number_of_another_kind(noise: Any):
    assert quick(noise_var=noise, steps=2).fit(*data(10)).noise_var_ == pytest.approx(0.1)


def test_noise_of_texts():
    X, y = data(10)
    for per_point in (TEXT, ["0.1"] * 10):
        with pytest.raises(ValueError, match="noise_var must hold numbers, got text"):
            quick(steps=2).fit(X, y, noise_var=per_point)
        with pytest.raises(ValueError, match="noise_var must hold numbers, got text"):
            quick(steps=2).fit(X, y).predict(X, return_std=True, noise_var=per_point)
