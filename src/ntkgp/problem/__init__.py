"""Turn network, data, noise and prior into one whitened linear-algebra problem, and shape its answers.

Every method solves this problem. This package imports no method.
"""
