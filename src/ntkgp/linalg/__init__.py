"""Linear algebra by matrix products.

Operators, partial SVDs, conjugate gradients, Cholesky factors, the head and its bracket. Nothing here knows networks, so
everything can be tested on a small matrix.
"""

from ntkgp.linalg.cgls import CGLS
from ntkgp.linalg.svd.dense import DenseSVD
from ntkgp.linalg.svd.lanczos import Lanczos
from ntkgp.linalg.svd.partial_svd import PartialSVD
from ntkgp.linalg.svd.subspace import PowerIteration, RandomizedSVD

__all__ = ["CGLS", "DenseSVD", "Lanczos", "PartialSVD", "PowerIteration", "RandomizedSVD"]
