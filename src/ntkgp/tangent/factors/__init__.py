"""Factors: the compact form of one layer's Jacobian. One file per kind of factor.

`layers` has a rule for each known kind of layer; `recording` records the inputs and output gradients of these layers. A new
layer rule goes into `layers`.
"""
