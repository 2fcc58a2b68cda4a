"""Public names for contextual bandits: choose an arm, observe its reward, update the posterior."""

from ntkgp.apps.bandits import UCB, Bandit, Thompson

__all__ = ["UCB", "Bandit", "Thompson"]
