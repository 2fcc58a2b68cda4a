"""Network, data, noise and prior as one whitened linear-algebra problem, and the shaping of its answers.

Every method solves this problem; no method is known here.
"""
