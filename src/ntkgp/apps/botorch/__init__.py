"""The BoTorch model; ``ntkgp.botorch`` is its door."""
