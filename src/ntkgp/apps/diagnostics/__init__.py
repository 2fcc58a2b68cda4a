"""Diagnostics of a posterior: scores and calibration on held-out data, and how far a trained network has left its tangent."""
