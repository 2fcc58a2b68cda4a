"""The library's own warnings and errors."""


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
        ntkgp._system.errors.GroupError: rank 2 stopped: ValueError: y holds NaN
    """


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written; the one before is whole, and the fit goes on.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", CheckpointWarning)  # rather stop than go on without
    """
