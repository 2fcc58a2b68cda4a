"""Hyper-parameters: marginal likelihood, warm features, the recipe for tables.

Everything here calls ``fit`` and is called by applications; it draws nothing and reads no files.
"""

from ntkgp.tuning.result import Tuned, WarmUp

__all__ = ["Tuned", "WarmUp"]
