"""Proves from autograd's graph that a network treats the rows of a batch one by one, where that is plain to see.

Most multilayer perceptrons consist of matrix products and elementwise operations on matrices with one row per point. Then each
row of a layer's output belongs to the point of the same row, and nothing needs to be computed to know it.
"""

from typing import Any

from torch import Tensor

ELEMENTWISE = {
    f"{name}Backward0" for name in (
        "Abs", "Add", "Cos", "Div", "Elu", "Erf", "Exp", "Gelu", "Hardtanh", "LeakyRelu", "LogSigmoid", "Mish", "Mul",
        "Neg", "Pow", "Relu", "Sigmoid", "Silu", "Sin", "Softplus", "Sqrt", "Sub", "Tanh", "Threshold",
    )
}  # fmt: skip
PRODUCTS = {"AddmmBackward0": 2, "MmBackward0": 1}  # position of the matrix that all rows are multiplied by


def row_by_row(out: Tensor, ends: list[Tensor]) -> bool:
    """Whether every path of the graph from the output (n, C) to the tensors `ends` keeps the rows apart.

    False also where another leaf than those of `ends` asks for gradients, and wherever the proof is not plain.
    """
    if any(end.ndim != 2 or len(end) != len(out) for end in ends):
        return False
    stops, leaves, start = {end.grad_fn for end in ends}, [end for end in ends if end.is_leaf], out.grad_fn
    while start is not None and start.name() == "ViewBackward0" and _shape(start) in ((len(out),), tuple(out.shape)):
        start = start.next_functions[0][0]
    left, seen = [start], set[Any]()
    while left:
        node = left.pop()
        if node is None or node in stops or node in seen or any(getattr(node, "variable", None) is leaf for leaf in leaves):
            continue
        seen.add(node)
        shape, before = _shape(node), [one for one, _ in node.next_functions]
        if len(shape) != 2 or shape[0] != len(out):
            return False
        if node.name() in PRODUCTS:
            if before[PRODUCTS[node.name()]] is not None:
                return False
        elif node.name() not in ELEMENTWISE:
            return False
        left += before
    return True


def _shape(node: Any) -> tuple[int, ...]:
    """The shape of the tensor that the node has computed; () if torch does not tell."""
    found = getattr(node, "_input_metadata", ())
    return tuple(found[0].shape) if len(found) == 1 else ()
