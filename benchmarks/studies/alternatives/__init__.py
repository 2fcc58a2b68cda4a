"""Every alternative the paper names, beside this library."""
