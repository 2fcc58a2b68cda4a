"""One fit on several processes.

The group and its collectives, the shard of one rank, vectors and Jacobians split over ranks. The user's data, files and
methods are in other rooms.
"""

from ntkgp._system.errors import GroupError
from ntkgp.distributed.group import Group

__all__ = ["Group", "GroupError"]
