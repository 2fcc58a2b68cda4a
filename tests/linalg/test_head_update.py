"""A head that takes in new rows stays an orthonormal basis with the right values."""

import torch

from ntkgp.linalg.head import Head
from ntkgp.linalg.head_update import with_more_rows
from ntkgp.linalg.operator import Operator
from tests.support.helpers import seeded


def test_new_rows_in_the_span_of_the_head():
    """Axes in the head, as of parameters that do nothing, and rows that add no direction to it: the basis stays one."""
    head = torch.eye(12, 6, dtype=torch.float64)
    rows = torch.zeros(3, 12, dtype=torch.float64)
    rows[:, :6] = torch.randn(3, 6, generator=seeded(), dtype=torch.float64)
    gram = torch.diag(torch.arange(12, 0, -1, dtype=torch.float64))
    before = Head.of(gram.matmul, head, gram @ head, float(gram.trace()))
    new = Operator((3, 12), rows.matmul, rows.T.matmul, torch.float64, torch.device("cpu"))
    whole = gram + rows.T @ rows
    after = with_more_rows(before, new, whole.matmul, float(whole.trace()), 9)
    torch.testing.assert_close(after.v.T @ after.v, torch.eye(9, dtype=torch.float64), rtol=0, atol=1e-12)
    assert float(after.values.sum()) <= float(whole.trace()) + 1e-9
