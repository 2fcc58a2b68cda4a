"""What every room needs and nobody would call mathematics.

Shared types, the library's warnings, checks of what a user passes, progress bars, free memory, locks, resuming. This room imports
nothing else of the library, and knows neither kernels nor posteriors.
"""
