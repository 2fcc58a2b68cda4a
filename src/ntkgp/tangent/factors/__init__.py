"""What is stored of one layer's Jacobian, one file for each kind of factor.

`layers` holds the layers whose rule is known, `recording` records their inputs and output gradients. A new layer rule goes into
`layers`.
"""
