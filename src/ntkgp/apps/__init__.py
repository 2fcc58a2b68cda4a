"""Applications of a posterior.

Tables and their commands, diagnostics, plots, bandits, active learning, Figure 1, BoTorch, the explorer. The rest of the
library never imports from here.
"""
