"""The exact posterior: one Cholesky factorisation."""
