"""Partial SVDs over products with A and Aᵀ alone, one file for each method.

A new method is a new subclass of ``SVDMethod``.
"""
