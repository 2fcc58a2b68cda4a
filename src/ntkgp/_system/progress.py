"""Progress bars, and nothing at all where none is wanted.

A ``tqdm(disable=True)`` would do, but for what it does all the same: it starts a thread, and takes a lock that is shared with
forked processes, which one of them that is killed may never give back.
"""

from typing import Any

from tqdm.auto import tqdm


class NoBar:
    """What is told to a bar that nobody looks at."""

    n: float = 0

    def update(self, n: float = 1) -> None:
        """So much is done."""
        self.n += n

    def set_postfix(self, *_: Any, **__: Any) -> None:
        """Words behind the bar."""

    def close(self) -> None:
        """The end."""

    def __enter__(self) -> "NoBar":
        return self

    def __exit__(self, *_: object) -> None:
        pass


Bar = tqdm | NoBar


def progress_bar(show: bool, **options: Any) -> Bar:
    """A bar of ``tqdm(**options)``, if it is to be shown.

    Example:
        >>> with progress_bar(False, total=3) as bar:
        ...     bar.update(2)
        >>> bar.n
        2
    """
    return tqdm(**options) if show else NoBar()
