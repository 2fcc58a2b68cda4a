"""A posterior that has seen more is the one that would have seen it at once; the old one stays what it was."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oracle import error
from problems import CASES, Case, by_name, every, reference
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from unchanged import unchanged

import ntkgp
from ntkgp import exact
from ntkgp.checkpoint import Progress
from ntkgp.exact import ExactPosterior
from ntkgp.heads import bracket_width, grow_until_tight
from ntkgp.linalg import growing_cholesky
from ntkgp.linalg.growing_cholesky import GrowingCholesky
from ntkgp.linalg.head import Head
from ntkgp.linalg.head_update import with_more_rows
from ntkgp.linalg.operator import Operator
from ntkgp.lowrank import LowRankPosterior
from ntkgp.tangent.tangent import Tangent
from ntkgp.trained import TrainedPosterior

TIGHT = ntkgp.CGLS(tol=1e-10, max_iterations=5000)
Method = ntkgp.Exact | ntkgp.LowRank | ntkgp.TrainedNetworks
METHODS: dict[str, Method] = {
    "exact": ntkgp.Exact(),
    "low rank": ntkgp.LowRank(rank=3, tail=2),
    "trained": ntkgp.TrainedNetworks(rank=2, tail=1, trainer=ntkgp.AcceleratedGD(tol=0.5)),
}
each_method = pytest.mark.parametrize("method", METHODS)
DOUBLE = [case for case in CASES if case.dtype == torch.float64 and "tiny" not in case.name]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def part(case: Case, rows: slice) -> Case:
    """The case with some of its points."""
    noise = case.noise_var[rows] if isinstance(case.noise_var, Tensor) else case.noise_var
    return replace(case, x=case.x[rows], y=case.y[rows], noise_var=noise)


def updated(posterior: ntkgp.Posterior, case: Case, rows: slice) -> ntkgp.Posterior:
    some = part(case, rows)
    noise = some.noise_var if isinstance(some.noise_var, Tensor) else None
    return posterior.update(some.x, some.y, noise_var=noise, generator=seeded(9))


def in_steps(case: Case, method: Method) -> ntkgp.Posterior:
    """Half of the points, one more, then the others."""
    half = len(case.x) // 2
    posterior = part(case, slice(0, half)).fit(method, generator=seeded())
    for rows in (slice(half, half + 1), slice(half + 1, None)):
        posterior = updated(posterior, case, rows)
    return posterior


def answers(posterior: ntkgp.Posterior, x: Tensor) -> list[Tensor]:
    p = posterior.predict(x)
    return [p.mean, p.variance, p.lower, p.upper, posterior.covariance(x), posterior.sample(2, generator=seeded(1))(x)]


def grid(points: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.rand(points, 2, generator=seeded(seed), dtype=torch.float64) * 2 - 1
    return x, torch.sin(3 * x[:, 0]) * x[:, 1]


def network(outputs: int = 1) -> torch.nn.Module:
    return ntkgp.mlp(2, outputs, width=32, generator=seeded(3)).double()


# ------------------------------------------------------------------------------------------------ exact


@every()
def test_exact_is_equal_to_a_fresh_fit_and_to_the_oracle(case: Case):
    # float32 residuals of a function as prior mean are rounded one by one; noise of 1e-8 loses half of the digits to begin with
    tolerance = 1e-5 if case.dtype == torch.float32 else 1e-6 if "tiny" in case.name else 1e-8
    posterior, fresh, truth = in_steps(case, ntkgp.Exact()), case.fit(ntkgp.Exact()), reference(case)
    assert isinstance(posterior, ExactPosterior)
    assert isinstance(fresh, ExactPosterior)
    assert posterior.refactored == 0
    assert posterior.backward_error <= 100 * torch.finfo(torch.float64).eps
    a, b = posterior.predict(case.query), fresh.predict(case.query)
    assert error(a.mean, b.mean) <= tolerance
    assert error(a.mean.flatten(), truth.mean) <= tolerance
    assert error(posterior.covariance(case.query), fresh.covariance(case.query)) <= tolerance
    assert error(posterior.covariance(case.query), truth.covariance) <= max(tolerance, 1e-8)
    assert posterior.log_marginal_likelihood == pytest.approx(truth.log_marginal_likelihood, rel=1e-6)
    for one, other in zip(posterior.leave_one_out(), fresh.leave_one_out(), strict=True):
        assert error(one, other) <= max(tolerance, 1e-7)


def test_five_hundred_single_updates_do_not_drift():
    (x, y), net = grid(550), network()
    posterior = ntkgp.fit(net, x[:50], y[:50], noise_var=1e-3)
    for k in range(50, 550):
        posterior = posterior.update(x[k : k + 1], y[k : k + 1])
    fresh, query = ntkgp.fit(net, x, y, noise_var=1e-3), grid(40, seed=1)[0] * 2
    assert isinstance(posterior, ExactPosterior)
    assert isinstance(fresh, ExactPosterior)
    a, b = posterior.predict(query), fresh.predict(query)
    assert error(a.mean, b.mean) <= 1e-8
    assert error(a.variance, b.variance) <= 1e-8
    assert error(posterior.covariance(query), fresh.covariance(query)) <= 1e-8
    assert error(posterior.factor, fresh.factor) <= 1e-10
    assert posterior.refactored == 0
    assert posterior.cholesky.count < 550 - 50  # it was made one piece more than once


def test_an_update_does_not_touch_what_is_there(monkeypatch: pytest.MonkeyPatch):
    """One point more writes one row: the large factor and the layer factors of the fit are shared, not copied."""
    (x, y), net = grid(300), network()
    posterior = ntkgp.fit(net, x[:290], y[:290], noise_var=0.01)
    assert isinstance(posterior, ExactPosterior)
    one = posterior.update(x[290:291], y[290:291])
    two = one.update(x[291:292], y[291:292])
    assert one.cholesky.base is posterior.cholesky.base
    assert two.cholesky.base is posterior.cholesky.base
    assert two.cholesky.left is one.cholesky.left
    assert two.problem.jacobian._sources[0] is posterior.problem.jacobian._sources[0]
    monkeypatch.setattr(exact.Exact, "fit", lambda *_: pytest.fail("factorised anew"))
    two.update(x[292:], y[292:])


def test_a_damaged_factor_is_noticed_and_computed_anew():
    (x, y), net = grid(60), network()
    posterior, fresh = (ntkgp.fit(net, x[:n], y[:n], noise_var=0.01) for n in (50, 60))
    assert isinstance(posterior, ExactPosterior)
    for factor in (1 + 1e-6, 0.1):  # the residuals say so; the new rows have no factor at all
        bad = replace(posterior, cholesky=replace(posterior.cholesky, base=posterior.cholesky.base * factor))
        mended = bad.update(x[50:], y[50:])
        assert mended.refactored == 1
        assert error(mended.predict(x).mean, fresh.predict(x).mean) <= 1e-9
        assert mended.update(x[:1], y[:1]).refactored == 1


def test_old_rows_are_looked_at_when_the_factor_is_moved(monkeypatch: pytest.MonkeyPatch):
    """A wrong answer at points that came long ago does not show in the rows of new ones."""
    (x, y), net = grid(60), network()
    posterior = ntkgp.fit(net, x[:50], y[:50], noise_var=0.01)
    assert isinstance(posterior, ExactPosterior)
    base = posterior.cholesky.base.clone()
    base[7, 7] *= 1 + 1e-10
    bad = replace(posterior, cholesky=replace(posterior.cholesky, base=base))
    monkeypatch.setattr(growing_cholesky, "LEAST", 4)
    monkeypatch.setattr(growing_cholesky, "SHARE", 1000)
    for k in range(50, 56):
        bad = bad.update(x[k : k + 1], y[k : k + 1])
    assert bad.refactored == 1


def test_a_head_full_of_directions_that_do_not_matter_is_found_anew():
    """Of as many directions as there are points: the head of an update may hold some that the kernel never saw."""
    case = by_name("paper mlp")
    posterior = case.fit(ntkgp.LowRank(rank=2), generator=seeded())
    assert isinstance(posterior, LowRankPosterior)
    problem, nowhere = posterior.problem, Progress(None, {}, None, torch.device("cpu"))
    any_directions = torch.linalg.qr(torch.randn(problem.shape[1], problem.shape[0], generator=seeded(), dtype=torch.float64))[
        0
    ]
    full = Head.of(problem.normal, any_directions, problem.normal(any_directions), problem.trace)
    assert bracket_width(problem, full, case.x) > 0.1
    method = ntkgp.LowRank(rtol=0.1)
    head, width = grow_until_tight(problem, full, 0.1, case.x, 4096, method.svd, "weights", seeded(), False, nowhere)
    assert head.rank == full.rank
    assert width <= 0.1


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


def test_jitter_stays():
    """Noise below rounding: what was added to the diagonal is added to new rows too, and nothing is computed anew."""
    net = ntkgp.mlp(1, width=8, output_scale=1e8, generator=seeded()).double()
    x = torch.linspace(0.1, 1.0, 4).double().repeat(6).unsqueeze(1)
    with pytest.warns(ntkgp.NumericalWarning, match="singular to working precision"):
        posterior = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=1e-8)
    assert isinstance(posterior, ExactPosterior)
    assert posterior.cholesky.jitter > 0
    more = posterior.update(x[:2] + 0.5, (x[:2, 0] + 0.5).sin())
    assert more.cholesky.jitter == posterior.cholesky.jitter
    assert bool(torch.isfinite(more.predict(x).mean).all())


def test_the_exact_posterior_says_when_memory_is_short(monkeypatch: pytest.MonkeyPatch):
    (x, y), net = grid(20), network()
    posterior = ntkgp.fit(net, x, y, noise_var=0.01)
    monkeypatch.setattr(exact, "free_bytes", lambda device: 1000)
    with pytest.raises(ValueError, match=r"of 21 points needs .*LowRank"):
        posterior.update(x[:1], y[:1])


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 40, 2), (200,), (5, 150)])
def test_a_growing_factor_is_the_dense_one(sizes: tuple[int, ...]):
    n = 20 + sum(sizes)
    b = torch.randn(n, n, generator=seeded(), dtype=torch.float64)
    a = b @ b.T + torch.eye(n).double()
    grown, start = GrowingCholesky.of(a[:20, :20]), 20
    for size in sizes:
        more = grown.extended(a[start : start + size, :start], a[start : start + size, start : start + size])
        assert more is not None
        grown, start = more, start + size
    dense, rhs = torch.linalg.cholesky(a), b[:, :3]
    assert len(grown) == n
    torch.testing.assert_close(grown.dense(), dense, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(grown.diagonal(), dense.diagonal())
    torch.testing.assert_close(grown.half_solve(rhs), torch.linalg.solve_triangular(dense, rhs, upper=False))
    torch.testing.assert_close(grown.solve(rhs), torch.cholesky_solve(rhs, dense))


# ------------------------------------------------------------------------------------------------ low rank


def rank_of(case: Case) -> int:
    return min(len(case.x) * case.outputs, sum(p.numel() for p in case.module().parameters() if p.requires_grad))


@every(DOUBLE)
@pytest.mark.parametrize("tail", [0, 2])
def test_low_rank_mean_and_bracket(case: Case, tail: int):
    truth = reference(case)
    rank = min(3, rank_of(part(case, slice(0, len(case.x) // 2))) - 1)
    posterior = in_steps(case, ntkgp.LowRank(rank=rank, tail=tail, solver=TIGHT))
    assert isinstance(posterior, LowRankPosterior)
    p, slack = posterior.predict(case.query), 1e-9 * truth.prior.diagonal()
    assert posterior.head.rank == rank
    assert error(p.mean.flatten(), truth.mean) <= 1e-7
    assert bool((p.lower.flatten() <= truth.variance + slack).all())
    assert bool((truth.variance <= p.upper.flatten() + slack).all())
    assert bool(((p.lower <= p.variance) & (p.variance <= p.upper)).all())


@every(DOUBLE)
def test_low_rank_stays_exact_at_full_rank(case: Case):
    truth, first = reference(case), part(case, slice(0, len(case.x) // 2))
    posterior = in_steps(case, ntkgp.LowRank(rank=rank_of(first), solver=TIGHT))
    p = posterior.predict(case.query)
    assert error(p.variance.flatten(), truth.variance) <= 1e-7
    assert error(posterior.covariance(case.query), truth.covariance) <= 1e-7


def test_fifty_updates_keep_the_bracket_certified_and_tight():
    (x, y), net, query = grid(150), network(), grid(30, seed=1)[0] * 1.5
    method = ntkgp.LowRank(rank=24, tail=2, solver=ntkgp.CGLS(tol=1e-8))
    posterior = ntkgp.fit(net, x[:100], y[:100], noise_var=0.01, method=method, generator=seeded())
    for k in range(100, 150):
        posterior = posterior.update(x[k : k + 1], y[k : k + 1], generator=seeded(k))
    truth = ntkgp.fit(net, x, y, noise_var=0.01, method=ntkgp.Exact()).predict(query)
    fresh = ntkgp.fit(net, x, y, noise_var=0.01, method=method, generator=seeded()).predict(query)
    p = posterior.predict(query)
    assert error(p.mean, truth.mean) <= 1e-6
    slack = 1e-9 * truth.variance.max()
    assert bool((p.lower <= truth.variance + slack).all())
    assert bool((truth.variance <= p.upper + slack).all())
    assert float((p.upper - p.lower).sum()) <= 2 * float((fresh.upper - fresh.lower).sum())
    assert isinstance(posterior, LowRankPosterior)
    assert float((posterior.head.v.T @ posterior.head.v - torch.eye(24).double()).abs().max()) <= 1e-12
    assert error(posterior.head.image, posterior.problem.normal(posterior.head.v)) <= 1e-11


def test_a_loose_head_is_looked_for_again():
    """Points of another region, a hundred times as many: what the old head leaves out has grown."""
    (x, y), net = grid(400), network()
    few = ntkgp.fit(net, x[:10] * 0.01, y[:10], noise_var=0.01, method=ntkgp.LowRank(rank=4, solver=TIGHT), generator=seeded())
    many = few.update(x[10:], y[10:])
    assert isinstance(many, LowRankPosterior)
    assert many.refined == 1
    fresh = ntkgp.fit(
        net, torch.cat([x[:10] * 0.01, x[10:]]), y, noise_var=0.01, method=ntkgp.LowRank(rank=4), generator=seeded()
    )
    assert isinstance(fresh, LowRankPosterior)
    assert many.head.slack <= 2 * fresh.head.slack


def test_a_wrong_image_is_noticed():
    (x, y), net = grid(60), network()
    posterior = ntkgp.fit(net, x[:50], y[:50], noise_var=0.01, method=ntkgp.LowRank(rank=4), generator=seeded())
    assert isinstance(posterior, LowRankPosterior)
    bad = replace(posterior, head=replace(posterior.head, image=posterior.head.image * (1 + 1e-6)))
    assert bad.update(x[50:51], y[50:51]).refined == 1
    assert posterior.update(x[50:51], y[50:51]).refined == 0


def test_the_solver_starts_from_the_old_solution():
    (x, y), net = grid(301), network()
    method = ntkgp.LowRank(rank=8, tail=3)
    posterior, fresh = (
        ntkgp.fit(net, x[:n], y[:n], noise_var=0.01, method=method, generator=seeded()) for n in (300, 301)
    )  # fmt: skip
    more = posterior.update(x[300:], y[300:])
    assert isinstance(more, LowRankPosterior)
    assert isinstance(fresh, LowRankPosterior)
    assert more.solution.converged
    assert more.solution.iterations < 0.8 * fresh.solution.iterations


def test_rtol_is_held():
    (x, y), net = grid(150), network()
    method = ntkgp.LowRank(rtol=0.3)
    posterior = ntkgp.fit(net, x[:60] * 0.3, y[:60], noise_var=0.05, method=method, generator=seeded())
    more = posterior.update(x[60:], y[60:], generator=seeded(1))
    assert isinstance(posterior, LowRankPosterior)
    assert isinstance(more, LowRankPosterior)
    assert more.bracket_width is not None
    assert more.bracket_width <= 0.3
    assert more.head.rank > posterior.head.rank


@pytest.mark.parametrize("name", ["noise per output"])
def test_the_tail_stays_unbiased(name: str):
    """Half of the draws' noise came with the fit, half with the update: their mean is within 4 standard errors."""
    case = by_name(name)
    posterior = in_steps(case, ntkgp.LowRank(rank=2, tail=2000))
    assert isinstance(posterior, LowRankPosterior)
    jacobian = posterior.problem.tangent.at(case.query)
    squares = jacobian.matmat(posterior.tail).square()
    estimate = jacobian.diag() - jacobian.matmat(posterior.explained).square().sum(dim=1) - squares.mean(dim=1)
    off = (estimate - reference(case).variance).abs() / (squares.std(dim=1) / 2000**0.5)
    assert float(off.max()) <= 4
    assert float((squares.mean(dim=1) / (squares.std(dim=1) / 2000**0.5)).max()) > 8  # there is something to be found


@pytest.mark.parametrize("kept", [True, False])
def test_data_in_batches(kept: bool, monkeypatch: pytest.MonkeyPatch):
    if not kept:
        monkeypatch.setattr(Tangent, "_fits", lambda *_: False)
    (x, y), net = grid(90), network()
    loader = DataLoader(TensorDataset(x[:60], y[:60]), batch_size=16)
    method = ntkgp.LowRank(rank=5, solver=TIGHT)
    posterior = ntkgp.fit(net, loader, noise_var=0.01, method=method, generator=seeded())
    for new in ((x[60:61], y[60:61]), (x[61:62], y[61:62]), (DataLoader(TensorDataset(x[62:], y[62:]), batch_size=10), None)):
        posterior = posterior.update(*new)
    truth = ntkgp.fit(net, x, y, noise_var=0.01, method=ntkgp.Exact()).predict(x)
    p = posterior.predict(x)
    assert error(p.mean, truth.mean) <= 1e-7
    assert bool(((p.lower <= truth.variance + 1e-10) & (truth.variance <= p.upper + 1e-10)).all())
    assert isinstance(posterior, LowRankPosterior)
    assert posterior.problem.batches is not None
    again = posterior.problem.batches.joined()
    assert torch.equal(again[0], x)
    assert torch.equal(again[1], y)


# ------------------------------------------------------------------------------------------------ trained


@pytest.mark.parametrize("name", ["paper mlp", "two outputs", "noise per point, two outputs", "function as prior mean"])
def test_trained_networks_reach_what_a_fresh_fit_reaches(name: str):
    case, trainer = by_name(name), ntkgp.AcceleratedGD(tol=1e-4, signal=1e-5)
    method = ntkgp.TrainedNetworks(rank=4, trainer=trainer)
    posterior, fresh, truth = in_steps(case, method), case.fit(method, generator=seeded()), reference(case)
    assert isinstance(posterior, TrainedPosterior)
    a, b = posterior.predict(case.query), fresh.predict(case.query)
    assert all(posterior.predictors.trained.converged)
    assert error(a.mean, b.mean) <= 1e-3
    assert error(a.mean.flatten(), truth.mean) <= 1e-3
    assert error(a.variance, b.variance) <= 1e-3
    slack = 1e-9 * truth.prior.diagonal()
    assert bool((a.lower.flatten() <= truth.variance + slack).all())
    assert bool((truth.variance <= a.upper.flatten() + slack).all())


@pytest.mark.parametrize("covariance", [ntkgp.TightCovariance(), ntkgp.PaperCovariance()], ids=["ours", "paper"])
def test_training_goes_on_from_where_it_was(covariance: ntkgp.TightCovariance | ntkgp.PaperCovariance):
    (x, y), net = grid(33), network()
    method = ntkgp.TrainedNetworks(rank=4, tail=3, trainer=ntkgp.AcceleratedGD(tol=1e-3), covariance=covariance)
    posterior = ntkgp.fit(net, x[:32], y[:32], noise_var=0.1, method=method, generator=seeded())
    more = posterior.update(x[32:], y[32:], generator=seeded(1))
    fresh = ntkgp.fit(net, x, y, noise_var=0.1, method=method, generator=seeded())
    assert isinstance(posterior, TrainedPosterior)
    assert isinstance(more, TrainedPosterior)
    assert isinstance(fresh, TrainedPosterior)
    assert torch.equal(more.plan.noise[:32], posterior.plan.noise)
    assert sum(more.predictors.trained.steps) < 0.8 * sum(fresh.predictors.trained.steps)


def test_networks_trained_elsewhere_cannot_go_on():
    x, y = grid(6)
    plan = ntkgp.plan_training(network(), x, y, noise_var=0.1, rank=1)
    with pytest.raises(ValueError, match=r"trained elsewhere.*plan_training"):
        plan.posterior([network(), network()]).update(x[:1], y[:1])


# ------------------------------------------------------------------------------------------------ all of them


@each_method
@pytest.mark.parametrize("name", ["two outputs", "noise per point", "weight used directly"])
def test_the_old_posterior_is_unchanged_and_may_branch(method: str, name: str):
    case, module = by_name(name), by_name(name).module()
    first = part(case, slice(0, 6))
    posterior = first.fit(METHODS[method], generator=seeded())
    before = answers(posterior, case.query)
    with unchanged(module):
        one = updated(posterior, case, slice(6, 7))
        one_before = answers(one, case.query)
        other = updated(posterior, case, slice(7, 9))  # a second successor, of another size
        later = updated(one, case, slice(7, 9))
        same = updated(posterior, case, slice(6, 7))
    for a, b in zip(before, answers(posterior, case.query), strict=True):
        assert torch.equal(a, b)
    for a, b, c in zip(one_before, answers(one, case.query), answers(same, case.query), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=1e-9, atol=1e-11)
    if method == "exact":
        for branch, rows in ((other, [*range(6), 7, 8]), (later, [*range(6), 6, 7, 8])):
            fresh = replace(part(case, slice(0, 9)), x=case.x[rows], y=case.y[rows])
            if isinstance(case.noise_var, Tensor):
                fresh = replace(fresh, noise_var=case.noise_var[rows])
            assert error(branch.predict(case.query).mean, fresh.fit(METHODS[method]).predict(case.query).mean) <= 1e-9


@pytest.mark.parametrize("method", ["exact", "low rank"])
def test_gradients_of_the_old_posterior_survive_an_update(method: str):
    """The memory is shared, and written to between the forward and the backward pass."""
    case = by_name("two outputs")
    posterior = updated(part(case, slice(0, 6)).fit(METHODS[method], generator=seeded()), case, slice(6, 7))
    x = case.query.clone().requires_grad_()
    (expected,) = torch.autograd.grad(posterior.predict(x).variance.sum(), x)
    total = posterior.predict(x).variance.sum()
    updated(posterior, case, slice(7, 8))
    (got,) = torch.autograd.grad(total, x)
    assert torch.equal(got, expected)


@each_method
@pytest.mark.parametrize(
    "name", ["noise per point, two outputs", "float32, two outputs", "weight used directly", "function as prior mean"]
)
def test_updated_posteriors_come_back_from_files(method: str, name: str, tmp_path: Path):
    case = by_name(name)
    posterior, path = in_steps(case, METHODS[method]), tmp_path / "posterior.safetensors"
    posterior.save(path)
    function = None if case.prior_mean is ntkgp.network_mean else case.prior_mean
    loaded = ntkgp.load(path, case.module(), prior_mean=function)
    for a, b in zip(answers(posterior, case.query), answers(loaded, case.query), strict=True):
        assert torch.equal(a, b)
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    a, b = (updated(p, case, slice(0, 2)) for p in (posterior, loaded))
    torch.testing.assert_close(a.predict(case.query).mean, b.predict(case.query).mean, rtol=1e-9, atol=1e-11)


def test_points_left_out_of_a_file_are_missed(tmp_path: Path):
    (x, y), net = grid(40), network()
    posterior = ntkgp.fit(net, [(x[:20], y[:20]), (x[20:], y[20:])], noise_var=0.1, method=ntkgp.LowRank(rank=2))
    posterior.update(x[:1], y[:1]).save(tmp_path / "p")
    with pytest.raises(ValueError, match="given as batches, which files leave out"):
        ntkgp.load(tmp_path / "p", net).update(x[:1], y[:1])


def test_noise_of_the_new_points():
    (x, y), net = grid(12), network()
    posterior = ntkgp.fit(net, x[:10], y[:10], noise_var=0.1)
    assert posterior.update(x[10:], y[10:]).predict(x[:1]).noise_var is not None
    assert posterior.update(x[10:], y[10:], noise_var=0.1).predict(x[:1]).noise_var is not None
    other = posterior.update(x[10:], y[10:], noise_var=torch.tensor([0.2, 0.3]))
    assert other.predict(x[:1]).noise_var is None
    noise = torch.cat([torch.full((10,), 0.1), torch.tensor([0.2, 0.3])]).double()
    assert error(other.predict(x).mean, ntkgp.fit(net, x, y, noise_var=noise).predict(x).mean) <= 1e-7
    with pytest.raises(ValueError, match=r"noise_var is missing.*differed from point to point.*\(2,\)"):
        other.update(x[:2], y[:2])


def test_noise_per_output_is_inherited():
    (x, _), net, noise = grid(12), network(2), torch.tensor([[0.1, 0.4]])
    y = torch.stack([x[:, 0].sin(), x[:, 1]], dim=1)
    posterior = ntkgp.fit(net, x[:10], y[:10], noise_var=noise).update(x[10:], y[10:])
    fresh = ntkgp.fit(net, x, y, noise_var=noise)
    assert error(posterior.predict(x).mean, fresh.predict(x).mean) <= 1e-10
    assert torch.equal(posterior.predict(x[:1]).noise_var, fresh.predict(x[:1]).noise_var)  # pyright: ignore


@each_method
def test_chosen_parameters_stay(method: str):
    case = by_name("two outputs")
    names = ntkgp.last_layer(case.module())
    first = part(case, slice(0, 8)).fit(METHODS[method], generator=seeded(), parameters=names)
    posterior, fresh = updated(first, case, slice(8, None)), case.fit(ntkgp.Exact(), parameters=names)
    a, b = posterior.predict(case.query), fresh.predict(case.query)
    assert error(a.mean, b.mean) <= {"exact": 1e-9, "low rank": 1e-4, "trained": 0.5}[method]
    assert bool((a.lower <= b.variance * (1 + 1e-9) + 1e-12).all())
    assert bool((b.variance <= a.upper * (1 + 1e-9) + 1e-12).all())


BAD = {
    "no y": ((torch.zeros(1, 2),), ValueError, "y is missing"),
    "another width": ((torch.zeros(1, 3), torch.zeros(1)), ValueError, r"shape \(M, 2\)"),
    "NaN": ((torch.full((1, 2), torch.nan), torch.zeros(1)), ValueError, "NaN"),
    "too many targets": ((torch.zeros(1, 2), torch.zeros(2)), ValueError, "y must have shape"),
    "two outputs": ((torch.zeros(1, 2), torch.zeros(1, 2)), ValueError, "1 output"),
    "batches and y": (([(torch.zeros(1, 2), torch.zeros(1))], torch.zeros(1)), TypeError, "x must be a torch.Tensor"),
}


@each_method
@pytest.mark.parametrize("what", BAD)
def test_refused(method: str, what: str):
    given, raises, words = BAD[what]
    (x, y), net = grid(6), network()
    posterior = ntkgp.fit(net, x, y, noise_var=0.1, method=METHODS[method], generator=seeded())
    with pytest.raises(raises, match=words):
        posterior.update(*given)  # pyright: ignore
