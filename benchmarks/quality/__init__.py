"""Predictive quality on UCI regression sets: this library and established methods on the same splits, scored alike."""
