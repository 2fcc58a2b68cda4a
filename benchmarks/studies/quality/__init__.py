"""Predictive quality on UCI regression sets."""
