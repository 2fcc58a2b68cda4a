"""The library's own warnings and errors."""


class NumericalWarning(UserWarning):
    """The answer is less accurate than requested; the message says how far it may be off.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", NumericalWarning)  # turn every such case into an error
    """


class GroupError(RuntimeError):
    """A fit over several processes has stopped on all ranks; the message says which rank failed, and why.

    Example:
        >>> raise GroupError("rank 2 stopped: ValueError: y holds NaN")
        Traceback (most recent call last):
        ...
        ntkgp._system.errors.GroupError: rank 2 stopped: ValueError: y holds NaN
    """


class ReentryError(Exception):
    """A posterior was called inside a call of its own network; not a RuntimeError, so that no fallback hides it.

    Example:
        >>> raise ReentryError("set a flag in the signal handler")
        Traceback (most recent call last):
        ...
        ntkgp._system.errors.ReentryError: set a flag in the signal handler
    """


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written; the previous one is intact, and the fit continues.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", CheckpointWarning)  # stop the fit rather than continue without checkpoints
    """
