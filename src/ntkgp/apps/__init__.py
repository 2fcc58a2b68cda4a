"""What people do with a posterior.

Tables and their commands, diagnostics, pictures, bandits, active learning, Figure 1, BoTorch, the explorer. The rooms below
never import from here.
"""
