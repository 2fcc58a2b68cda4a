"""Plots. Each function draws into an Axes and returns it; matplotlib comes with the extra ``ntkgp[cli]``."""
