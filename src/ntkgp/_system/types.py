"""Shared vocabulary: the letters of the project and its shared types.

N training points · M query points · D inputs · C outputs · P parameters · K known singular directions ("head") ·
T tail predictors (the paper's K′) · S columns multiplied together. Rows of a Jacobian are ordered point-major: row
``n * C + c`` is output c at point n.
"""

from collections.abc import Callable

from torch import Tensor

MeanFunction = Callable[[Tensor], Tensor]
