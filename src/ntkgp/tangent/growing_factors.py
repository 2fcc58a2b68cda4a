"""Layer factors that are kept, in memory with room for those of later points."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ntkgp._system.growth import Room, roomier
from ntkgp.tangent.chunk import Chunk


@dataclass(frozen=True)
class GrowingChunk:
    """The rows of J at `count` points: the first of those that `memory` has room for."""

    memory: Chunk
    count: int
    room: Room

    @classmethod
    def of(cls, chunk: Chunk) -> "GrowingChunk":
        """A chunk as it is, without room."""
        return cls(chunk, chunk.count, Room(chunk.count))

    @property
    def chunk(self) -> Chunk:
        """The rows."""
        return self.memory if self.count == self.memory.count else self.memory.points(slice(0, self.count))

    def __call__(self) -> Iterator[Chunk]:
        """The rows, as a source of chunks."""
        return iter([self.chunk])

    def extended(self, more: Chunk) -> "GrowingChunk":
        """The rows of both. Writes only the new ones, where there is room that nobody else has claimed; copies otherwise."""
        count, mine = self.count + more.count, self.chunk
        memory, room = self.memory, self.room
        if not room.claim(self.count, more.count):
            room = Room(roomier(count))
            room.claim(self.count, more.count)
            memory = more.room_for(room.size, None)
            memory.write(0, mine)
        memory.write(self.count, more)
        # What autodiff needs is the points alone; they are few numbers beside factors.
        others = mine.others.joined(more.others) if mine.others and more.others else None
        return GrowingChunk(replace(memory, others=others), count, room)
