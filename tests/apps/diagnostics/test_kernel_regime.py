"""How far a network has left its tangent, against dense Jacobians."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from tests.support import oracle
from tests.support.evaluations import descended, moved
from tests.support.helpers import seeded
from tests.support.modules import Scalar, cnn
from tests.support.unchanged import unchanged


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in module.parameters() if p.requires_grad])


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "paper mlp": (lambda: ntkgp.mlp(2, width=16, generator=seeded()), (2,)),
    "two outputs": (lambda: ntkgp.mlp(2, 2, width=8, generator=seeded()).double(), (2,)),
    "scalar": (Scalar, (2,)),
    "cnn": (cnn, (1, 6, 6)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("unchecked")
def test_kernel_regime_equals_the_dense_jacobians(kind: str):
    torch.manual_seed(0)
    build, features = KINDS[kind]
    module, x = build(), torch.randn(9, *features, generator=seeded(3))
    x = x.to(next(module.parameters()).dtype)
    trained = moved(module, 0.05)
    with unchanged(module, trained):
        got = ntkgp.diagnostics.kernel_regime(module, trained, x)
    f0, f, shift = oracle.outputs(module, x), oracle.outputs(trained, x), flat(trained) - flat(module)
    J0, J = oracle.jacobian(module, x), oracle.jacobian(trained, x)
    K0, K = J0 @ J0.T, J @ J.T
    assert got.mean_drift == pytest.approx(float((f - f0 - J0 @ shift).norm() / (f - f0).norm()), rel=1e-9)
    assert got.kernel_change == pytest.approx(float((K - K0).norm() / K0.norm()), rel=1e-9)
    assert got.weight_drift == pytest.approx(float(shift.norm() / flat(module).norm()), rel=1e-9)


def test_kernel_matrices_are_of_the_points_asked_for():
    module = ntkgp.mlp(2, width=16, generator=seeded()).double()
    trained, x = moved(module, 0.05), torch.randn(9, 2, generator=seeded(3), dtype=torch.float64)
    few = x[[0, 4, 8]]
    J0, J = oracle.jacobian(module, few), oracle.jacobian(trained, few)
    expected = float((J @ J.T - J0 @ J0.T).norm() / (J0 @ J0.T).norm())
    all_points, three = (ntkgp.diagnostics.kernel_regime(module, trained, x, points=n) for n in (9, 3))
    assert three.kernel_change == pytest.approx(expected, rel=1e-9)
    assert three.kernel_change != pytest.approx(all_points.kernel_change, rel=1e-3)
    assert three.mean_drift == all_points.mean_drift


def test_a_linear_model_never_leaves_its_tangent():
    module = nn.Linear(3, 2)
    regime = ntkgp.diagnostics.kernel_regime(module, moved(module, 10.0), torch.randn(20, 3, generator=seeded()))
    assert (regime.mean_drift, regime.kernel_change) == (0.0, 0.0)
    assert regime.weight_drift > 1
    assert regime.verdict.startswith("in the kernel regime")


def test_no_movement_no_drift():
    module, x = ntkgp.mlp(2, width=8, generator=seeded()), torch.randn(5, 2, generator=seeded())
    regime = ntkgp.diagnostics.kernel_regime(module, copy.deepcopy(module), x)
    assert (regime.mean_drift, regime.kernel_change, regime.weight_drift) == (0.0, 0.0, 0.0)
    assert "have not moved" in regime.verdict


def test_from_zero_weights_everything_is_drift_and_nothing_is_nan():
    module = nn.Sequential(nn.Linear(2, 4, bias=False), nn.Tanh(), nn.Linear(4, 1, bias=False))
    for p in module.parameters():
        nn.init.zeros_(p)
    regime = ntkgp.diagnostics.kernel_regime(module, moved(module, 1.0), torch.randn(5, 2, generator=seeded()))
    assert regime.mean_drift == 1.0  # the tangent at zero sees nothing
    assert all(math.isfinite(v) for v in vars(regime).values())
    assert regime.verdict.startswith("outside the kernel regime")


def test_wide_networks_stay_and_narrow_ones_leave():
    x = torch.linspace(-1, 1, 10).unsqueeze(1)
    y = torch.sin(3 * x[:, 0])
    nets = [ntkgp.mlp(1, width=w, depth=2, activation=nn.Tanh(), generator=seeded(1)) for w in (4, 64, 1024)]
    narrow, middle, wide = (ntkgp.diagnostics.kernel_regime(net, descended(net, x, y, 100), x) for net in nets)
    assert wide.mean_drift < 0.05
    assert wide.kernel_change < 0.1
    assert wide.verdict.startswith("in the kernel regime")
    assert wide.mean_drift < middle.mean_drift < narrow.mean_drift
    assert wide.kernel_change < middle.kernel_change < narrow.kernel_change
    assert not narrow.verdict.startswith("in the kernel regime")


def test_frozen_parts_and_frozen_copies():
    """Only what was trainable at θ0 moves; that the trained copy was frozen for use does not matter."""
    module, x = ntkgp.mlp(2, width=16, generator=seeded()).double(), torch.randn(6, 2, generator=seeded()).double()
    module[0].requires_grad_(False)
    trained = copy.deepcopy(module)
    with torch.no_grad():
        trained[-1].weight *= 1.1  # pyright: ignore[reportOperatorIssue]
    a, b = (ntkgp.diagnostics.kernel_regime(module, net, x) for net in (trained, copy.deepcopy(trained).requires_grad_(False)))
    assert a == b
    assert a.mean_drift == 0.0  # linear in the last layer
    moved_by = float((trained[-1].weight - module[-1].weight).detach().norm())  # pyright: ignore
    assert a.weight_drift == pytest.approx(moved_by / float(flat(module).norm()), rel=1e-9)
