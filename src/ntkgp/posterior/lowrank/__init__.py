"""The matrix-free posterior: a head of singular directions; conjugate gradients solve for the rest."""
