"""The commands for tables, one file each: ``ntkgp fit``, ``ntkgp predict`` and ``ntkgp evaluate``."""
