"""Memory that is shared by a tensor and its longer successors."""


class Room:
    """Who may write where in memory of `size` rows, of which everyone reads only the rows that were there for him.

    Whoever holds the first n rows may write after them, but only one of those who hold n: a second successor of the same
    tensor is a branch, and must copy. So no row is ever written twice, and readers need not know of each other.

    Example:
        >>> room = Room(4)
        >>> room.claim(2, 1), room.claim(2, 1), room.claim(3, 1), room.claim(4, 1)  # first, a branch, its successor, full
        (True, False, True, False)
    """

    def __init__(self, size: int):
        self.size = size
        self._claims: dict[int, object] = {}

    def claim(self, start: int, count: int) -> bool:
        """Whether the holder of the first `start` rows may write `count` more."""
        mine = object()
        return start + count <= self.size and self._claims.setdefault(start, mine) is mine  # atomic: threads may race for it


def roomier(rows: int) -> int:
    """How many rows to make room for when `rows` are needed: doubling makes the copies few."""
    return max(16, 2 * rows)
