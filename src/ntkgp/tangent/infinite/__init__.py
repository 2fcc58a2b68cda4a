"""The tangent kernel of networks of infinite width, at points of the user."""
