"""The door to contextual bandits: choose an arm, observe its reward, know a little more."""

from ntkgp.apps.bandits import UCB, Bandit, Thompson

__all__ = ["UCB", "Bandit", "Thompson"]
