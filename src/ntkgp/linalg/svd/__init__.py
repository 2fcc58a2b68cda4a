"""Partial SVDs from products with A and Aᵀ alone, one file per method.

A new method is a new subclass of ``SVDMethod``.
"""
