"""tune() against the oracle: values, gradients, recovery of what data were drawn with, and what it says."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ntkgp
from ntkgp.posterior.exact.posterior import ExactPosterior
from ntkgp.problem.build import build_problem
from ntkgp.problem.source import Source
from ntkgp.tuning.likelihood import NOISE, PRIOR, Likelihood
from tests.support import oracle
from tests.support.cases import NETWORKS, Case, every
from tests.support.typechecker import repeated
from tests.support.unchanged import unchanged


def layers(names: list[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    return groups


def oracle_likelihood(module: nn.Module, x: Tensor, y: Tensor, noise: Tensor, prior: dict[str, float]) -> float:
    return oracle.pose(module, x, y, x, noise, prior).log_marginal_likelihood


@every(NETWORKS)
def test_value_and_gradient_equal_the_oracle(case: Case):
    """By noise and by the prior variance of every layer; the oracle differentiates by finite differences."""
    module, generator = case.module(), torch.Generator().manual_seed(5)
    problem = build_problem(module, Source(case.x, case.y, 1.0), dtype=torch.float64)
    groups = layers(list(problem.network.anchor))
    likelihood = Likelihood(problem, list(groups.values()))
    start = {NOISE: torch.tensor([-1.0], dtype=torch.float64),
             PRIOR: 0.3 * torch.randn(len(groups), generator=generator, dtype=torch.float64)}  # fmt: skip

    def truth(logs: dict[str, Tensor]) -> float:
        prior = dict(zip(groups, logs[PRIOR].exp().tolist(), strict=True))
        noise = logs[NOISE].exp().expand(len(case.x))
        return oracle_likelihood(module, case.x, case.y, noise, prior)

    leaves = {name: log.clone().requires_grad_() for name, log in start.items()}
    assert likelihood.gradient(leaves) == pytest.approx(truth(start), rel=1e-9)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        for k in range(len(leaf)):
            step = torch.zeros_like(start[name])
            step[k] = 1e-4
            slope = (truth({**start, name: start[name] + step}) - truth({**start, name: start[name] - step})) / 2e-4
            assert float(leaf.grad[k]) == pytest.approx(slope, rel=1e-4, abs=1e-5)


SCALED: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: ntkgp.mlp(2, 2, width=8, activation=nn.SiLU(), generator=torch.Generator().manual_seed(1)),
    "layer norm": lambda: nn.Sequential(nn.Linear(2, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 2)),
    "by autodiff": lambda: _Plain(),
    "positions": lambda: nn.Sequential(nn.Unflatten(1, (2, 1)), nn.Linear(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6, 2)),
}


class _Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.outside = nn.Parameter(torch.randn(2, 4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.outside(torch.tanh(x @ self.inside))


@pytest.mark.parametrize("name", SCALED)
def test_gradient_by_input_and_weight_scales(name: str):
    torch.manual_seed(0)
    module = nn.Sequential(ntkgp.networks.InputScales(torch.tensor([0.7, 1.5])), SCALED[name]()).double()
    x, y = torch.randn(7, 2).double(), torch.randn(7, 2).double()
    problem = build_problem(module, Source(x, y, 0.5), dtype=torch.float64)
    groups = layers(list(problem.network.anchor))
    weights = dict(problem.network.anchor)
    likelihood = Likelihood(problem, list(groups.values()), base=weights)
    start = {PRIOR: torch.zeros(len(groups), dtype=torch.float64), "0.scale": torch.tensor([0.2, -0.1], dtype=torch.float64),
             **{name: torch.tensor(0.1, dtype=torch.float64) for name in weights}}  # fmt: skip

    def truth(logs: dict[str, Tensor]) -> float:
        scaled = copy.deepcopy(module)
        with torch.no_grad():
            tensors = {**dict(scaled.named_parameters()), **dict(scaled.named_buffers())}
            for key, log in logs.items():
                if key != PRIOR:
                    tensors[key].copy_(log.exp() * weights.get(key, 1.0))
        return oracle.pose(scaled, x, y, x, 0.5).log_marginal_likelihood

    leaves = {key: log.clone().requires_grad_() for key, log in start.items()}
    assert likelihood.gradient(leaves) == pytest.approx(truth(start), rel=1e-9)
    for key, leaf in leaves.items():
        if key == PRIOR:
            continue
        leaf.grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad  # the last bias moves nothing
        for k in range(leaf.numel()):
            step = torch.zeros_like(start[key])
            step.view(-1)[k] = 1e-5
            slope = (truth({**start, key: start[key] + step}) - truth({**start, key: start[key] - step})) / 2e-5
            assert float(leaf.grad.view(-1)[k]) == pytest.approx(slope, rel=1e-4, abs=1e-6)


def draw(seed: int, points: int = 150, noise: float = 0.05) -> tuple[nn.Module, Tensor, Tensor]:
    """Data drawn from the model: input scales 4 and 2, prior variance 3."""
    g = torch.Generator().manual_seed(seed)
    module = ntkgp.mlp(2, width=64, activation=nn.Tanh(), output_scale=1.0, generator=g).double()
    x = torch.rand(points, 2, generator=g, dtype=torch.float64) * 4 - 2
    scaled = nn.Sequential(ntkgp.networks.InputScales(torch.tensor([4.0, 2.0], dtype=torch.float64)), module)
    root = torch.linalg.cholesky(3.0 * ntkgp.kernel(scaled, x) + noise * torch.eye(points, dtype=torch.float64))
    return module, x, root @ torch.randn(points, generator=g, dtype=torch.float64)


def test_recovers_what_the_data_were_drawn_with():
    """Medians over five draws of 150 points; benchmarks/speed/tuning.py holds the bar at 500 points and ten draws."""
    found = []
    for seed in repeated(range(5)):
        module, x, y = draw(seed)
        tuned = ntkgp.tune(module, x, y, prior_var="shared", hyper_prior=None, steps=60)
        assert isinstance(tuned.prior_var, float)
        assert tuned.log_marginal_likelihood >= tuned.start
        found.append([*tuned.input_scales["scales"].tolist(), tuned.prior_var, float(tuned.noise_var)])
    median = torch.tensor(found).median(dim=0).values
    assert (median / torch.tensor([4.0, 2.0, 3.0, 0.05]) - 1).abs().max() < 0.35


@pytest.mark.parametrize("options", [{}, {"prior_var": "shared"}, {"weight_scales": True}, {"hyper_prior": 0.1}, {"steps": 1},
                                     {"input_scales": False}, {"starts": 6}, {"noise_var": 0.05}], ids=str)  # fmt: skip
def test_never_below_its_start_and_equal_to_the_posterior(options: dict):
    module, x, y = draw(3, points=30)
    tuned = ntkgp.tune(module, x, y, **{"steps": 15, **options})
    assert tuned.log_marginal_likelihood >= tuned.start
    posterior = tuned.fit(x, y)
    assert isinstance(posterior, ExactPosterior)
    assert posterior.log_marginal_likelihood == pytest.approx(tuned.log_marginal_likelihood, rel=1e-9)
    assert "log marginal likelihood" in str(tuned)


def test_module_and_randomness_are_left_alone():
    module, x, y = draw(1, points=20)
    with unchanged(module):
        a = ntkgp.tune(module, x, y, points=10, steps=5, generator=torch.Generator().manual_seed(3))
        b = ntkgp.tune(module, x, y, points=10, steps=5, generator=torch.Generator().manual_seed(3))
    assert a.points == 10
    assert a.log_marginal_likelihood == b.log_marginal_likelihood


def test_noise_of_each_output():
    g = torch.Generator().manual_seed(0)
    x = torch.rand(80, 1, generator=g, dtype=torch.float64) * 4 - 2
    noise = torch.randn(80, 2, generator=g, dtype=torch.float64) * torch.tensor([0.05, 0.4])
    y = torch.cat([torch.sin(2 * x), torch.cos(2 * x)], dim=1) + noise
    net = ntkgp.mlp(1, 2, width=64, activation=nn.SiLU(), generator=g).double()
    tuned = ntkgp.tune(net, x, y, noise_var="outputs", steps=60)
    assert isinstance(tuned.noise_var, Tensor)
    assert tuned.noise_var.shape == (1, 2)
    ratio = tuned.noise_var[0] / torch.tensor([0.05**2, 0.4**2])
    assert 0.6 < float(ratio.min()) <= float(ratio.max()) < 1.6
    p = tuned.fit(x, y).predict(x[:3])
    assert p.noise_var is not None
    assert torch.allclose(p.noise_var, tuned.noise_var.expand(3, 2))


def test_known_noise_of_each_observation_is_kept():
    module, x, y = draw(2, points=40)
    known = torch.linspace(0.01, 0.1, 40, dtype=torch.float64)
    tuned = ntkgp.tune(module, x, y, noise_var=known, points=25, steps=5)
    assert tuned.noise_var is known
    posterior = tuned.fit(x, y)
    with pytest.raises(ValueError, match="pass noise_var to predict"):
        _ = posterior.predict(x[:2]).total_std
    p = posterior.predict(x[:2], noise_var=known[:2])
    assert torch.allclose(p.total_std.square(), p.variance + known[:2])


def test_the_likeliest_of_several_modules():
    module, x, y = draw(4, points=60)
    poor = nn.Linear(2, 1).double()
    tuned = ntkgp.tune([poor, module], x, y, steps=20)
    assert len(tuned.candidates) == 2
    assert tuned.candidates[1] == tuned.log_marginal_likelihood > tuned.candidates[0]


def test_batches_and_groups():
    module, x, y = draw(5, points=30)
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    groups = [["0", "2"], ["4"]]
    a = ntkgp.tune(module, loader, prior_var=groups, steps=5)
    b = ntkgp.tune(module, x, y, prior_var=groups, steps=5)
    assert a.log_marginal_likelihood == pytest.approx(b.log_marginal_likelihood, rel=1e-9)
    assert isinstance(b.prior_var, dict)
    assert b.prior_var["network.0"] == b.prior_var["network.2"] != b.prior_var["network.4"]


def test_post_hoc_on_some_layers():
    """θ0 = trained weights, the network's own mean, the last layer alone: no input scales, and the oracle's likelihood."""
    module, x, y = draw(6, points=40)
    tuned = ntkgp.tune(module, x, y, prior_mean=ntkgp.network_mean, parameters=ntkgp.networks.last_layer(module), steps=20)
    assert tuned.input_scales == {}
    assert set(tuned.prior_var) == {"4"}  # pyright: ignore[reportArgumentType]
    frozen = copy.deepcopy(module)
    for name, p in frozen.named_parameters():
        p.requires_grad_(name.startswith("4."))
    mean = oracle.outputs(module, x)
    truth = oracle.pose(frozen, x, y, x[:5], tuned.noise_var, tuned.prior_var, (mean, mean[:5]))
    assert tuned.log_marginal_likelihood == pytest.approx(truth.log_marginal_likelihood, rel=1e-9)
    p = tuned.fit(x, y).predict(x[:5])
    assert oracle.error(p.variance, truth.variance) < 1e-9
    assert oracle.error(p.mean, truth.mean) < 1e-9


def test_edges_and_flat_directions_are_named():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20, 2, generator=g, dtype=torch.float64)
    net = ntkgp.mlp(2, width=256, generator=g).double()
    with pytest.warns(ntkgp.NumericalWarning, match="noise_var sits at the lower edge"):
        tuned = ntkgp.tune(net, torch.cat([x, x]), torch.cat([x[:, 0], x[:, 0]]), steps=100, hyper_prior=None)
    assert any("lower edge" in note for note in tuned.notes)
    one = ntkgp.tune(net, x[:1], x[:1, 0], steps=5, input_scales=False)
    assert any("flat" in note for note in one.notes)


def test_leave_one_out_is_that_of_leaving_one_out():
    module, x, y = draw(7, points=12)
    tuned = ntkgp.tune(module, x, y, steps=10)
    posterior = tuned.fit(x, y)
    assert isinstance(posterior, ExactPosterior)
    errors, std = posterior.leave_one_out()
    for k in range(len(x)):
        others = torch.arange(len(x)) != k
        truth = oracle.pose(tuned.module, x[others], y[others], x[k : k + 1], tuned.noise_var, tuned.prior_var)
        spread = math.sqrt(float(truth.variance) + float(tuned.noise_var))
        assert float(std[k]) == pytest.approx(spread, rel=1e-8)
        assert float(errors[k]) == pytest.approx(float(y[k] - truth.mean) / spread, rel=1e-7)
    assert tuned.leave_one_out == pytest.approx(float(errors.square().mean()), rel=1e-8)


def test_widening_scales_all_variances_and_no_mean():
    module, x, y = draw(8, points=20)
    tuned = ntkgp.tune(module, x, y, steps=10)
    over_confident = ntkgp.tuning.Tuned(**{**vars(tuned), "leave_one_out": 2.0})
    a, b = tuned.fit(x, y).predict(x), over_confident.widened().fit(x, y).predict(x)
    assert torch.allclose(a.mean, b.mean)
    assert torch.allclose(2 * a.variance, b.variance)
    assert over_confident.widened().leave_one_out == 1.0
    assert tuned.leave_one_out > 1 or tuned.widened().noise_var == tuned.noise_var


@pytest.mark.parametrize(("options", "message"), [
    ({"prior_var": "each"}, "prior_var must be 'layers', 'shared' or lists"),
    ({"prior_var": [["0"]]}, "must name every parameter exactly once"),
    ({"noise_var": "none"}, "noise_var must be 'shared', 'outputs' or known values"),
    ({"noise_var": -1.0}, "noise_var must be positive"),
    ({"steps": 0}, "steps must be at least 1"),
    ({"starts": 0}, "starts must be at least 1"),
    ({"points": 0}, "points must be at least 1"),
    ({"hyper_prior": -1.0}, "hyper_prior of tune must be positive"),
    ({"parameters": ["9"]}, "owns no trainable parameter"),
])  # fmt: skip
def test_bad_options_are_named(options: dict, message: str):
    module, x, y = draw(0, points=10)
    with pytest.raises(ValueError, match=message):
        ntkgp.tune(module, x, y, **options)


@pytest.mark.parametrize("value", [0.0, 3.0, 1e100, 1e-100])
def test_constant_targets(value: float):
    module, x, _ = draw(0, points=10)
    tuned = ntkgp.tune(module, x, torch.full((10,), value, dtype=torch.float64), steps=5)
    assert math.isfinite(tuned.log_marginal_likelihood)


def test_targets_whose_squares_overflow():
    module, x, y = draw(0, points=10)
    with pytest.raises(ValueError, match=r"overflow in torch\.float64; rescale y"):
        ntkgp.tune(module, x, y * 1e300, steps=5)


def test_parts_in_another_mode_stay_in_it():
    """A frozen part in evaluation mode, in a network in training mode; and the copy is tuned as the user's network computes."""
    frozen = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)).eval()
    net = nn.Sequential(frozen, nn.SiLU(), nn.Linear(4, 1))
    modes = [part.training for part in net.modules()]
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    tuned = ntkgp.tune(net, x, x[:, 0], starts=1, steps=2)
    assert [part.training for part in net.modules()] == modes
    assert [part.training for part in tuned.module.get_submodule("network").modules()] == modes
    warm = ntkgp.warm_up([net, copy.deepcopy(net)], x, x[:, 0], steps=[1], generator=torch.Generator().manual_seed(0))
    assert [part.training for part in warm.module.get_submodule("networks.0").modules()] == modes
