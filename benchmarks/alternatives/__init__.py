"""Every alternative the paper names, over the same network, training budget and tuning budget, on the same data."""
