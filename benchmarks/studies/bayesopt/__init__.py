"""Bayesian optimisation with this library's model and with BoTorch's own."""
