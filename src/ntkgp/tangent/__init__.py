"""J(x), the Jacobian of a network by its parameters at θ0, as an operator.

Products, kernels, layer factors, autodiff. This room knows networks and points, but neither targets, noise nor posteriors.
"""
