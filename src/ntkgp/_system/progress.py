"""Progress bars, or a stand-in that does nothing.

``tqdm(disable=True)`` is not enough: it still starts a thread and takes a lock shared with forked processes, and a forked
process that is killed may never release that lock.
"""

from typing import Any

from tqdm.auto import tqdm


class NoBar:
    """Stands in for a ``tqdm`` bar that is not shown."""

    n: float = 0

    def update(self, n: float = 1) -> None:
        """Count n more steps."""
        self.n += n

    def set_postfix(self, *_: Any, **__: Any) -> None:
        """Ignore the text after the bar."""

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> "NoBar":
        return self

    def __exit__(self, *_: object) -> None:
        pass


Bar = tqdm | NoBar


def progress_bar(show: bool, **options: Any) -> Bar:
    """Return ``tqdm(**options)`` if the bar is to be shown, else a stand-in.

    Example:
        >>> with progress_bar(False, total=3) as bar:
        ...     bar.update(2)
        >>> bar.n
        2
    """
    return tqdm(**options) if show else NoBar()
