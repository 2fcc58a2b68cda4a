"""Stored layer factors, in a buffer with room for the factors of later points."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ntkgp._system.memory import Room, roomier
from ntkgp.tangent.chunk import Chunk


@dataclass(frozen=True)
class GrowingChunk:
    """The rows of J at `count` points: the first `count` points of the buffer `memory`."""

    memory: Chunk
    count: int
    room: Room

    @classmethod
    def of(cls, chunk: Chunk) -> "GrowingChunk":
        """Wrap a chunk, without room for more points."""
        return cls(chunk, chunk.count, Room(chunk.count))

    @property
    def chunk(self) -> Chunk:
        """The rows in use."""
        return self.memory if self.count == self.memory.count else self.memory.points(slice(0, self.count))

    def __call__(self) -> Iterator[Chunk]:
        """Iterate over the rows as one chunk."""
        return iter([self.chunk])

    def extended(self, more: Chunk) -> "GrowingChunk":
        """Append the rows of `more`: in place if the buffer has unclaimed room, else in a larger copy."""
        count, mine = self.count + more.count, self.chunk
        memory, room = self.memory, self.room
        if not room.claim(self.count, more.count):
            room = Room(roomier(count))
            room.claim(self.count, more.count)
            memory = more.room_for(room.size, None)
            memory.write(0, mine)
        memory.write(self.count, more)
        # Autodiff needs only the points, which are small compared to the factors.
        others = mine.others.joined(more.others) if mine.others and more.others else None
        return GrowingChunk(replace(memory, others=others), count, room)
