"""Arrays of the user as tensors: copies in one order, however the arrays lie in memory; text and dates are refused."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor


def tensor_of(values: Any, name: str) -> Float64[Tensor, "..."]:
    """Copy numbers into a float64 tensor: any strides, byte order and kind of array; raise ValueError if some are no numbers.

    Example:
        >>> import numpy as np
        >>> tensor_of(np.arange(3)[::-1], "y")
        tensor([2., 1., 0.], dtype=torch.float64)
    """
    check_numbers(values, name)
    return torch.from_numpy(np.array(np.asarray(values), dtype=np.float64, order="C"))


def check_numbers(values: Any, name: str) -> None:
    """Raise ValueError if an array or list holds something that is no number, TypeError for objects; None counts as NaN."""
    if hasattr(values, "toarray"):
        raise ValueError(f"{name} must be a dense array, got a sparse {type(values).__name__}; use {name}.toarray()")
    array = np.asarray(values)
    if array.dtype.kind in "fiubc":
        return
    text = next((v for v in array.flat if isinstance(v, str | bytes)), None)
    if text is not None:
        text = text.item() if isinstance(text, np.generic) else text
        raise ValueError(f"{name} must hold numbers, got text such as {text!r}; encode it as numbers")
    date = next((v.dtype for v in array.flat if isinstance(v, np.datetime64 | np.timedelta64)), None)
    if array.dtype.kind != "O" or date is not None:
        raise ValueError(f"{name} must hold numbers, got {date or array.dtype}; convert it to numbers")
    try:
        array.astype(np.float64)
    except OverflowError as error:
        raise ValueError(f"{name} holds a number too large for float64, whose largest is 1.8e308; rescale {name}") from error
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} must hold numbers, got objects that are none: {error}") from error
