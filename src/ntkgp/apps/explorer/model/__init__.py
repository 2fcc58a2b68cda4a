"""The computations of the explorer, from plain values to plain values; independent of the browser."""
