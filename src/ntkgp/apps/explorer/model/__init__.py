"""What a page of the explorer computes, from plain values to plain values.

Nothing here knows the browser.
"""
