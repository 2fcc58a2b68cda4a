"""The explorer in the browser, ``ntkgp explore``: comes with the extra ``ntkgp[app]``."""
