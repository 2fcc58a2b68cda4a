"""The matrix-free posterior: a head of singular directions, the rest by conjugate gradients."""
