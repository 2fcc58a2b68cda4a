"""Measured claims: ``speed`` and ``studies`` measure, ``methods`` are what the studies compare, ``results`` what they found."""
