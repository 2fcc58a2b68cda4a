"""Networks of infinite width: their kernels, by a recursion over the layers. No weights, no derivatives by autograd."""
