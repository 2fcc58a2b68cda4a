"""The browser side of the explorer: widgets, plots and callbacks of a page."""
