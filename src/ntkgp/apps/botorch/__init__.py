"""The BoTorch model, exported by ``ntkgp.botorch``."""
