"""Measured claims: each module runs one benchmark, writes JSON to results/ and prints its table."""
