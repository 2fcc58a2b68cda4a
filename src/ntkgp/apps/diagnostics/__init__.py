"""Whether a posterior can be trusted.

Scores and calibration on held-out data, and whether a trained network is still described by its tangent.
"""
