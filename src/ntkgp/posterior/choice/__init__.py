"""The automatic choice of a method: count what each costs, then compare."""
