"""J(x), the Jacobian of a network by its parameters at θ0, as an operator."""
