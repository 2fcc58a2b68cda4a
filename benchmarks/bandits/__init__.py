"""Contextual bandits: problems, this library's bandit, baselines and the runs."""
