"""Hyper-parameters: marginal likelihood, briefly trained features, the recipe for tables.

This package calls ``fit``; applications call this package. It makes no plots and reads no files.
"""

from ntkgp.tuning.result import Tuned, WarmUp

__all__ = ["Tuned", "WarmUp"]
