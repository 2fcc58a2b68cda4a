"""Shared vocabulary: the letters of the project and the few types every module knows.

N training points · M query points · D inputs · C outputs · P parameters · K kept singular directions ("head") ·
T tail predictors (the paper's K′) · S columns handled together. Rows of a Jacobian are ordered point-major: row
``n * C + c`` is output c at point n.
"""

from collections.abc import Callable

from torch import Tensor

MeanFunction = Callable[[Tensor], Tensor]


class NumericalWarning(UserWarning):
    """Arithmetic could not deliver what was asked for; the message says how far the answer may be off.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", NumericalWarning)  # turn every such case into an error
    """


class GroupError(RuntimeError):
    """A fit over several processes has stopped on all of them: the message says on which rank, and why.

    Example:
        >>> raise GroupError("rank 2 stopped: ValueError: y holds NaN")
        Traceback (most recent call last):
        ...
        ntkgp._types.GroupError: rank 2 stopped: ValueError: y holds NaN
    """


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written; the one before is whole, and the fit goes on.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", CheckpointWarning)  # rather stop than go on without
    """
