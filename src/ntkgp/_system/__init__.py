"""Services that every room uses and that contain no mathematics.

Shared types, the library's warnings, checks of the user's arguments, progress bars, free memory, locks, resuming. This room
imports no other room of the library, and knows neither kernels nor posteriors.
"""
