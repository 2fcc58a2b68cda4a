"""Layers that are used in ways their rules do not cover: answers must not depend on whether anybody noticed."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import ntkgp
from ntkgp.tangent.autodiff import AutodiffRows
from ntkgp.tangent.factors.checking import FEW, spread
from ntkgp.tangent.network import PureNetwork
from ntkgp.tangent.tangent import Tangent
from tests.support import oracle
from tests.support.cases import NETWORKS, Case, every
from tests.support.oracle import error


class Two(nn.Module):
    """Two linear layers; `forward` of the subclasses uses them in unusual ways."""

    def __init__(self, inputs: int = 2):
        super().__init__()
        self.a, self.b = nn.Linear(inputs, 4), nn.Linear(4, 1)

    def out(self, h: Tensor) -> Tensor:
        return self.b(torch.tanh(h))


class TimeFirst(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x.transpose(0, 1))).mean(dim=0))


class Sorted(Two):
    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return self.out(self.a(x[order])[order.argsort()])


class TwiceAsMany(Two):
    def forward(self, x: Tensor) -> Tensor:
        h = self.a(torch.cat([x, -2 * x]))
        return self.out(h[: len(x)] * h[len(x) :])


class UsedDirectly(Two):
    """Beside its layer, a weight is used at the few points beyond 1.5."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x) + (x[:, :1] > 1.5) * (x @ self.a.weight.T).square())


class CalledDirectly(Two):
    """The layer's forward, which no hook sees."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x) + (x[:, :1] > 1.5) * self.a.forward(x - 1).square())


class FromTheLeft(Two):
    """The points of the batch are turned around by a matrix product from the left, and back after the layer."""

    def forward(self, x: Tensor) -> Tensor:
        turn = torch.eye(len(x), dtype=x.dtype).flip(0)
        return self.out(turn @ self.a(turn @ x))


class Experts(Two):
    """Points are routed to one of two layers."""

    def __init__(self):
        super().__init__()
        self.c = nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, h = x[:, 0] < 0, x.new_zeros(len(x), 4)
        h[left], h[~left] = self.a(x[left]), self.c(x[~left])
        return self.out(h)


class Rare(Two):
    """A layer that is called only where some point is beyond 2.2."""

    def __init__(self):
        super().__init__()
        self.c = nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        far = x[:, :1] > 2.2
        return self.out(self.a(x) + far * self.c(x)) if far.any() else self.out(self.a(x))


class ByName(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(input=x))


class InsideVmap(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.vmap(self.a)(x))


class OtherForward(Two):
    """A layer with a forward of its own, different at the points beyond 1.5."""

    def __init__(self):
        super().__init__()
        self.a.__dict__["forward"] = partial(self._changed, self.a)

    @staticmethod
    def _changed(layer: nn.Linear, x: Tensor) -> Tensor:
        return nn.functional.linear(x, layer.weight, layer.bias) * torch.where(x[:, :1] > 1.5, 2.0, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x))


class Hooked(Two):
    """A hook doubles the output of a layer at the points beyond 1.5."""

    def __init__(self):
        super().__init__()
        self.a.register_forward_hook(self._doubled)

    @staticmethod
    def _doubled(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output * torch.where(inputs[0][:, :1] > 1.5, 2.0, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x))


class Energy(Two):
    """A weight is also used through the derivative of the network by x, at the few points beyond 1.5."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            z = x.detach().clone().requires_grad_(True)
            (g,) = torch.autograd.grad(self.out(self.a(z)).sum(), z, create_graph=True)
        return self.out(self.a(x)) + (x[:, :1] > 1.5) * g.square().sum(dim=1, keepdim=True)


class OtherWeights(Two):
    """At the points beyond 1.5 a layer computes with other weights."""

    def forward(self, x: Tensor) -> Tensor:
        other = functional_call(self.a, {"weight": 2 * self.a.weight, "bias": self.a.bias}, (x,))
        return self.out(torch.where(x[:, :1] > 1.5, other, self.a(x)))


class OtherNorm(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * torch.where(input[:, :1] > 1, 2.0, 1.0)


class SubclassOfNorm(Two):
    def __init__(self):
        super().__init__()
        self.c = OtherNorm(4).eval()
        nn.init.normal_(self.c.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.c(self.a(x)))


class TiedPadding(nn.Module):
    """The table of an embedding, whose padding row is not trained there, is also the weight of the last layer."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Embedding(9, 4, padding_idx=0), nn.Linear(9, 1)
        nn.init.normal_(self.a.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(tokens)).mean(dim=1) @ self.a.weight.T)


class Distinct(nn.Module):
    """An embedding of the distinct tokens of the batch."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Embedding(9, 4), nn.Linear(4, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        values, where = tokens.unique(return_inverse=True)
        return self.b(torch.tanh(self.a(values)[where]).mean(dim=1))


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


PLANE = _normal(200, 2)
IN_ORDER = PLANE[PLANE[:, 0].argsort()]
SEQUENCES = torch.cat([torch.zeros(1, 12, 3), _normal(10, 12, 3), torch.zeros(1, 12, 3)]).double()  # zero at both ends
TOKENS = torch.randint(0, 9, (20, 3), generator=torch.Generator().manual_seed(1))
UNUSUAL: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "sequence first": (partial(TimeFirst, 3), SEQUENCES),
    "sorted batch": (Sorted, PLANE),
    "sorted batch, in order": (Sorted, IN_ORDER),
    "twice as many rows": (TwiceAsMany, PLANE),
    "weight used directly at few points": (UsedDirectly, IN_ORDER[torch.arange(199, -1, -1)]),
    "forward called directly at few points": (CalledDirectly, PLANE),
    "turned around by a product": (FromTheLeft, PLANE),
    "experts": (Experts, PLANE),
    "rare layer": (Rare, PLANE),
    "input by name": (ByName, PLANE),
    "inside vmap": (InsideVmap, PLANE),
    "another forward": (OtherForward, PLANE),
    "a hook": (Hooked, PLANE),
    "distinct tokens": (Distinct, TOKENS),
    "derivatives by x at few points": (Energy, PLANE),
    "other weights at few points": (OtherWeights, IN_ORDER),
    "a subclass of batch norm": (SubclassOfNorm, IN_ORDER),
    "tied table with padding": (TiedPadding, TOKENS),
}
each_unusual = pytest.mark.parametrize("name", UNUSUAL)


def unusual(name: str) -> tuple[nn.Module, Tensor]:
    build, x = UNUSUAL[name]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return build().double(), x


@each_unusual
def test_kernels_and_products_equal_the_oracle(name: str):
    module, x = unusual(name)
    j = oracle.jacobian(module, x)
    tangent = Tangent(PureNetwork(module), x, 1)
    rows, few = tangent.at(x), tangent.at(x[:7])
    assert error(rows.gram(), j @ j.T) <= 1e-12
    assert error(few.cross(rows), j[:7] @ j.T) <= 1e-12
    assert error(rows.diag(), j.square().sum(dim=1)) <= 1e-12
    # J Jᵀ u by products: the order of the parameters does not matter.
    assert error(rows.matmat(rows.rmatmat(x.new_ones(len(x), 2).double())), j @ (j.T @ torch.ones(len(x), 2).double())) <= 1e-12


@pytest.mark.parametrize("name", [name for name in UNUSUAL if name != "rare layer"])  # its rule holds in one large batch
def test_the_reason_is_on_the_posterior(name: str):
    module, x = unusual(name)
    posterior = ntkgp.fit(module, x, _normal(len(x)), noise_var=0.1)
    assert "a.weight" in posterior.by_autodiff or "c.weight" in posterior.by_autodiff
    assert "b.weight" not in posterior.by_autodiff or name == "derivatives by x at few points"  # through it, both are used


@each_unusual
def test_answers_are_right_in_any_order_of_the_data(name: str):
    module, x = unusual(name)
    y, query = _normal(len(x)), x[:9]
    truth = oracle.pose(module, x, y, query, 0.1, 1.0, None)
    backwards = torch.arange(len(x) - 1, -1, -1)
    for order in (torch.arange(len(x)), backwards):
        exact = ntkgp.fit(module, x[order], y[order], noise_var=0.1, method=ntkgp.Exact()).predict(query)
        low = ntkgp.fit(module, x[order], y[order], noise_var=0.1, method=ntkgp.LowRank(rank=3, draws=0)).predict(query)
        assert error(exact.mean, truth.mean) <= 1e-9
        assert error(exact.variance, truth.covariance.diagonal()) <= 1e-9
        assert bool((low.lower <= truth.covariance.diagonal() * (1 + 1e-9)).all())
        assert bool((low.upper >= truth.covariance.diagonal() * (1 - 1e-9)).all())


@pytest.mark.parametrize("build", [Rare, UsedDirectly, CalledDirectly])
def test_a_rule_that_breaks_at_later_points(build: Callable[[], nn.Module]):
    """At the training points the rule holds: only queries, or an update, show that it does not hold everywhere."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = build().double()
    inner, outer = PLANE[PLANE[:, 0] < 1.5], PLANE[PLANE[:, 0] >= 1.5]
    y = _normal(len(PLANE))
    posterior = ntkgp.fit(module, inner, y[: len(inner)], noise_var=0.1)
    truth = oracle.pose(module, inner, y[: len(inner)], outer, 0.1, 1.0, None)
    assert error(posterior.predict(outer).mean, truth.mean) <= 1e-9
    assert error(posterior.covariance(outer), truth.covariance) <= 1e-9
    later = posterior.update(outer, y[len(inner) :])
    truth = oracle.pose(module, torch.cat([inner, outer]), y, outer, 0.1, 1.0, None)
    assert error(later.predict(outer).mean, truth.mean) <= 1e-9
    again = later.update(inner[:2], y[:2])  # the factors of later rows are not all of one kind
    truth = oracle.pose(module, torch.cat([inner, outer, inner[:2]]), torch.cat([y, y[:2]]), outer, 0.1, 1.0, None)
    assert error(again.predict(outer).mean, truth.mean) <= 1e-9


@pytest.mark.parametrize("build", [Rare, UsedDirectly])
def test_a_rule_that_breaks_in_a_later_chunk(build: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch):
    """Chunks before it have factors, chunks from there on have none, and no buffer can hold both."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = build().double()
    x, j = IN_ORDER, oracle.jacobian(module, IN_ORDER)
    monkeypatch.setattr("ntkgp.tangent.tangent.working_bytes", lambda device: 20_000)
    tangent = Tangent(PureNetwork(module), x[:50], 1)
    assert error(tangent.at(x).gram(), j @ j.T) <= 1e-12
    batches = Tangent(PureNetwork(module), x[:50], 1).over(lambda: iter(x.split(30)), len(x))
    for _ in range(2):  # the first pass finds it out, the second knows it
        assert error(batches.diag(), j.square().sum(dim=1)) <= 1e-12


@every(NETWORKS)
def test_known_layers_keep_their_factors_at_many_points_in_float32(case: Case):
    """Rounding must not look like a broken rule."""
    module, x = case.module().float(), case.x
    x = torch.cat([x if not x.is_floating_point() else x.float() * 10.0**power for power in range(-3, 3)] * 5)
    few = Tangent(PureNetwork(module), x, case.outputs)
    before = few.by_autodiff
    few.at(x)
    assert few.by_autodiff == before
    if case.name not in ("weight used directly", "time-first sequences"):
        assert all("disagrees" not in reason for reason in before.values())


class MixesLargeBatches(Two):
    """Subtracts the mean of the batch if there are more than 50 points; `centre` in place of the layer's input or output."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x - x.mean(dim=0) if len(x) > 50 else x))


class MixesWithoutLayers(nn.Module):
    """The same with a parameter of no layer."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(dim=0) if len(x) > 50 else x) @ self.w


@pytest.mark.parametrize("build", [MixesLargeBatches, MixesWithoutLayers])
def test_a_module_that_mixes_points_only_in_large_batches_is_refused(build: Callable[[], nn.Module]):
    module = build().double()
    with pytest.raises(ValueError, match="differs between batches of 200 and 8 points"):
        ntkgp.fit(module, PLANE + 3, _normal(200), noise_var=0.1)
    posterior = ntkgp.fit(module, PLANE[:40] + 3, _normal(40), noise_var=0.1)
    with pytest.raises(ValueError, match="depends on the other points of the batch"):
        posterior.predict(PLANE + 3)


class MixesInside(Two):
    """The features of a point depend on the batch, which its output does not show: the last layer is zero, or nearly."""

    def __init__(self, last: float = 0.0):
        super().__init__()
        nn.init.constant_(self.b.weight, last)
        nn.init.constant_(self.b.bias, last)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.out(h - h.mean(dim=0))


class MixesParameters(nn.Module):
    """The same with parameters that no layer owns."""

    def __init__(self):
        super().__init__()
        self.v, self.w = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.zeros(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.v - (x @ self.v).mean(dim=0)) @ self.w


@pytest.mark.parametrize("build", [MixesInside, partial(MixesInside, 1e-6), MixesParameters])
@pytest.mark.parametrize("points", [3, 200])
def test_a_tangent_that_mixes_points_is_refused_whatever_the_outputs(build: Callable[[], nn.Module], points: int):
    for use in (lambda m, x: ntkgp.fit(m, x, _normal(points), noise_var=0.1), ntkgp.kernel):
        with pytest.raises(ValueError, match="depends on the other points of the batch"):
            use(build().double(), PLANE[:points] + 1)


class Closure(nn.Module):
    """Its forward calls a function that holds the module itself: a copy of it calls the original."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 4), nn.Linear(4, 1)
        self.call = lambda x: self.a(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.call(x)))


class Listed(Two):
    """A weight is also used through a plain list."""

    def __init__(self):
        super().__init__()
        self.weights = [self.a.weight]

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x) + x @ self.weights[0].T)


@pytest.mark.parametrize(("build", "words"), [(Closure, "must own all parameters"), (Listed, "'a.weight' is also used")])
def test_parameters_behind_other_references_are_refused(build: Callable[[], nn.Module], words: str):
    with pytest.raises(ValueError, match=words):
        ntkgp.kernel(build(), PLANE.float())


class HookedGradient(nn.Module):
    """A hook changes the gradient of an activation, which forward mode does not see."""

    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(2, 5)), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(x @ self.w)
        if h.requires_grad:
            h.register_hook(lambda g: 0.1 * g)
        return self.b(h)


def test_hooks_on_gradients_count_in_all_products():
    torch.manual_seed(0)
    module, x = HookedGradient().double(), PLANE[:30]
    rows = Tangent(PureNetwork(module), x, 1).at(x)
    eye = torch.eye(rows.shape[1], dtype=torch.float64)
    assert error(rows.matmat(eye), rows.rmatmat(torch.eye(30, dtype=torch.float64)).T) <= 1e-12
    assert error(rows.matmat(eye).square().sum(dim=1), rows.diag()) <= 1e-12


def test_frequencies_that_scale_gradients_are_refused():
    with pytest.raises(ValueError, match=r"layer '0' has scale_grad_by_freq=True.*set it to False"):
        ntkgp.kernel(nn.Sequential(nn.Embedding(9, 2, scale_grad_by_freq=True), nn.Flatten()), TOKENS)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 2**24 + 4, 99_999_999, 10**12])
def test_few_points_are_points_of_x(count: int):
    rows = spread(count)
    assert len(rows) == FEW
    assert rows[0] == 0
    assert rows[-1] == count - 1
    assert bool((rows.diff() >= 0).all())


class Rounds(Two):
    """Computes in float32 inside, as RMS norms often do."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(torch.tanh((h.float() * 1.1).to(h.dtype)))


def test_the_rounding_of_operations_inside_is_known():
    for build, unit in ((Rounds, torch.float32), (Two, torch.float64)):
        network = PureNetwork(build().double() if build is Rounds else MixesLargeBatches().double())
        Tangent(network, PLANE[:20], 1)
        assert network.unit == torch.finfo(unit).eps


def test_a_module_that_depends_on_the_order_of_the_batch_is_refused():
    class FirstWins(Two):
        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.a(x) + torch.arange(len(x), dtype=x.dtype).unsqueeze(1))

    with pytest.raises(ValueError, match="depends on the other points of the batch"):
        ntkgp.fit(FirstWins().double(), PLANE, _normal(200), noise_var=0.1)


class ShiftBeforeNormalisation(nn.Module):
    """The bias of the convolution shifts all values, which the normalisation takes away: its derivative is rounding."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(1, 1, 3, padding=1), nn.LayerNorm(4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x.view(-1, 1, 2, 2)).flatten(1)
        return self.out(self.norm(h + torch.arange(4.0).to(h)) + self.norm(h * 2 + torch.arange(4.0).to(h).sqrt()))


@pytest.mark.parametrize("seed", range(5))
def test_a_derivative_of_rounding_errors_is_no_sign_of_mixing(seed: int):
    torch.manual_seed(seed)
    net = ShiftBeforeNormalisation().double()
    x = torch.cat([torch.zeros(1, 4), torch.randn(3, 4)]).double()
    for points in (x[:1], x):
        posterior = ntkgp.fit(net, points, points[:, 0], noise_var=0.1, method=ntkgp.LowRank(rank=1, draws=2))
        assert torch.isfinite(posterior.predict(x).variance).all()


class MixedTangents(nn.Module):
    """Outputs that stay apart, tangents that do not."""

    def __init__(self):
        super().__init__()
        self.a, self.out = nn.Linear(2, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.out(torch.tanh(h + h.mean(dim=0) - h.mean(dim=0).detach()))


@pytest.mark.parametrize("method", [None, ntkgp.LowRank(rank=1, draws=2)])
def test_one_point_cannot_hide_that_points_mix(method: ntkgp.LowRank | None):
    """A fit of one point has nothing to mix; the first query of several points has."""
    net, x = MixedTangents().double(), torch.randn(1, 2, generator=torch.Generator().manual_seed(0)).double()
    posterior = ntkgp.fit(net, x, x[:, 0], noise_var=0.1, method=method)
    with pytest.raises(ValueError, match="depends on the other points of the batch"):
        posterior.predict(torch.randn(5, 2, generator=torch.Generator().manual_seed(1)).double())


class FunctionalPadding(nn.Module):
    """An embedding without a layer, whose padding row has a derivative in forward mode and none in reverse mode."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Parameter(torch.randn(5, 3, generator=torch.Generator().manual_seed(0))), nn.Linear(3, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(torch.nn.functional.embedding(tokens.long(), self.table, padding_idx=0).sum(dim=1)))


@pytest.mark.parametrize("later", [False, True])
def test_forward_mode_is_checked_at_every_point(later: bool):
    """The first points have no padding, so that both modes agree there."""
    net = FunctionalPadding().double()
    x = torch.tensor([[1.0, 2.0, 3.0]] * 6 + [[4.0, 0.0, 0.0]] * 2)
    x = x[:6] if later else x
    query = torch.tensor([[2.0, 0.0, 0.0], [1.0, 2.0, 0.0]])
    posterior = ntkgp.fit(net, x, torch.linspace(0, 1, len(x)).double(), noise_var=0.1, method=ntkgp.Exact("kernel"))
    values = posterior.sample(4000, generator=torch.Generator().manual_seed(0))(query)
    ratio = values.var(dim=0) / posterior.predict(query).variance
    assert ((ratio - 1).abs() < 5 * (2 / 4000) ** 0.5).all()


@pytest.mark.parametrize("points", [1, 4, 5])
def test_rows_by_torch_func_are_checked_for_each_number_of_points(points: int):
    """torch's rule for PReLU is wrong where the points are as many as the outputs, here 4, and raises elsewhere."""
    net = nn.Sequential(nn.Linear(3, 8), nn.PReLU(), nn.Linear(8, 4)).double()
    x = torch.randn(points, 3, generator=torch.Generator().manual_seed(0)).double()
    rows = torch.stack([
        torch.cat([part.flatten() for part in torch.autograd.grad(net(x[n : n + 1])[0, c], list(net.parameters()))])
        for n in range(points) for c in range(4)
    ])  # fmt: skip
    assert error(ntkgp.kernel(net, x), rows @ rows.T) < 1e-12


class Distances(nn.Module):
    """A network whose rows torch.func gets wrong for every number of points: parameters before torch.cdist."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(3)
        self.w, self.o = nn.Parameter(torch.randn(2, 5, generator=g)), nn.Parameter(torch.randn(5, 2, generator=g))

    def forward(self, x: Tensor) -> Tensor:
        h = x @ self.w
        return torch.cdist(h[:, :, None], h.sin()[:, :, None]).sum(dim=2) @ self.o


def test_wrong_rows_by_torch_func_are_noticed():
    net = Distances().double()
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)).double()
    pure = PureNetwork(net)
    found = AutodiffRows(pure, pure.layout, dict.fromkeys(pure.anchor, 1.0), x, 2).dense()
    rows = torch.stack([
        torch.cat([part.flatten() for part in torch.autograd.grad(net(x[n : n + 1])[0, c], list(net.parameters()))])
        for n in range(6) for c in range(2)
    ])  # fmt: skip
    assert error(found, rows) < 1e-12
    assert not pure.transformable


class ClippedByTheLargest(Two):
    """Only the largest values of a batch change."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x.clamp(max=0.9 * x.max())))


def test_mixing_by_the_largest_value_is_refused_whatever_the_data():
    """A comparison of batches alone misses some data sets: those whose largest value is in both."""
    for seed in range(40):
        torch.manual_seed(seed)
        net, x = ClippedByTheLargest(4), torch.randn(60, 4)
        with pytest.raises(ValueError, match="depends on the other points"):
            ntkgp.fit(net, x, torch.randn(60), noise_var=0.01)
