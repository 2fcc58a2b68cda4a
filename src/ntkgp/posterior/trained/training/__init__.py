"""Algorithm 1 on many targets at once.

The training task, the trainers (one file each), and the trained copies as predictors.
"""
