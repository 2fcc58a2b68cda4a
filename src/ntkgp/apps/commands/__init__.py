"""The commands for tables: ``ntkgp fit``, ``ntkgp predict`` and ``ntkgp evaluate``, one file each."""
