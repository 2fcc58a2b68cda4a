"""The options of the method that a low-rank posterior needs later: to add data, to draw functions, to add draws."""

from dataclasses import dataclass, field

from ntkgp.linalg.cgls import CGLS
from ntkgp.linalg.svd.partial_svd import SVDMethod
from ntkgp.linalg.svd.subspace import RandomizedSVD

CONFIDENCE = 0.999  # probability of each bracket, unless the user asks for another


@dataclass(frozen=True)
class Options:
    """The options of :class:`LowRank` that the posterior stores."""

    solver: CGLS
    confidence: float = CONFIDENCE
    svd: SVDMethod = field(default_factory=lambda: RandomizedSVD(power=1, tol=None))
