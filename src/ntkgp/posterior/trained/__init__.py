"""The paper's posterior: mean and covariance from copies of the network trained by gradient descent."""
