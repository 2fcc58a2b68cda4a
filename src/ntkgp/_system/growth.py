"""Memory that a tensor shares with longer versions of itself."""


class Room:
    """Decides who may append to a shared buffer of `size` rows. A holder of n rows reads only the first n.

    Among the holders of the first n rows, only the first to ask may append to the buffer; any other starts a branch and must
    copy. So no row is ever written twice, and the holders need no other coordination.

    Example:
        >>> room = Room(4)
        >>> room.claim(2, 1), room.claim(2, 1), room.claim(3, 1), room.claim(4, 1)  # granted, a branch, granted, full
        (True, False, True, False)
    """

    def __init__(self, size: int):
        self.size = size
        self._claims: dict[int, object] = {}

    def claim(self, start: int, count: int) -> bool:
        """Return whether the holder of the first `start` rows may append `count` rows."""
        mine = object()
        # setdefault is atomic: when two threads ask at once, only one gets the claim.
        return start + count <= self.size and self._claims.setdefault(start, mine) is mine


def roomier(rows: int) -> int:
    """Return the number of rows to allocate when `rows` are needed; doubling makes copies rare."""
    return max(16, 2 * rows)
