"""The explorer in the browser, ``ntkgp explore``; needs the extra ``ntkgp[app]``."""
