"""Out of distribution: does the epistemic std tell points unlike the data from points like them."""
