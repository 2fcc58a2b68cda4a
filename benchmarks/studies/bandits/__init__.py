"""Contextual bandits: the wheel and a generated problem."""
