"""One fit over several processes: the same posterior as one process that holds everything."""

import gc
import os
import signal
import time
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from ntkgp.posterior.exact.posterior import ExactPosterior
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.problem.operators import Operators
from tests.support.cases import by_name
from tests.support.helpers import seeded
from tests.support.ranks import METHODS, TIMEOUT, Died, cut, results, run, shard_of

FIELDS = ("mean", "variance", "lower", "upper")


def fit_and_predict(rank: int, size: int, asked: list[tuple], memory: int | None = None):
    """Fit, and predict: for each (case, method, how the data is cut, whether by a loader)."""
    group, found = ntkgp.distributed.Group(timeout=TIMEOUT, memory=memory), []
    for name, method, how, loader in asked:
        case, x, y, noise = shard_of(name, size, rank, how, loader)
        posterior = ntkgp.fit(
            case.module(), x, y, noise_var=noise, method=METHODS[method], prior_mean=case.prior_mean,
            prior_var=case.prior_var, generator=seeded(rank), group=group,
        )  # fmt: skip
        assert (memory is None) == (not isinstance(posterior, LowRankPosterior) or not posterior.problem.operators.space.spread)
        found.append((vars(posterior.predict(case.query, noise_var=0.1)), posterior.covariance(case.query)))
    return found


def alone(name: str, method: str):
    case = by_name(name)
    posterior = case.fit(METHODS[method], generator=seeded())
    return vars(posterior.predict(case.query, noise_var=0.1)), posterior.covariance(case.query)


def check(found, expected, tolerance: float = 1e-8):
    scale = max(1.0, float(expected[0]["upper"].abs().max()))
    for field in FIELDS:
        assert float((found[0][field] - expected[0][field]).abs().max()) <= tolerance * scale, field
    assert float((found[1] - expected[1]).abs().max()) <= tolerance * scale


def compare(size: int, asked: list[tuple], memory: int | None = None):
    expected = [alone(name, method) for name, method, *_ in asked]
    for found in results(size, fit_and_predict, size, asked, memory):
        for one, other in zip(found, expected, strict=True):
            check(one, other)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_posterior_is_that_of_one_process(size: int):
    """Shards of the same size, of very different ones, and an empty one; tensors and loaders; noise per point."""
    cuts = ["even", "uneven"] + (["empty first"] if size > 1 else [])
    compare(size, [("noise per output", "rank", how, how == "uneven") for how in cuts])


@pytest.mark.parametrize("memory", [None, 1], ids=["copies", "split"])
def test_many_kinds_of_problems(memory: int | None):
    """Copies of the head on every rank, or split over them."""
    names = ("more points than parameters", "cnn", "function as prior mean", "weight used directly")
    compare(3, [(name, "rank", "uneven", False) for name in names] + [("paper mlp", "rtol", "empty first", False)], memory)


def test_the_other_methods_and_the_choice_among_them():
    compare(2, [("two outputs", method, "uneven", method == "exact") for method in ("exact", "trained", "chosen")])


def float32_answers(rank: int, size: int):
    case, x, y, noise = shard_of("float32, two outputs", size, rank, "empty first")
    posterior = ntkgp.fit(
        case.module(),
        x,
        y,
        noise_var=noise,
        method=ntkgp.LowRank(rank=4, side="weights"),
        group=ntkgp.distributed.Group(),
        generator=seeded(),
    )
    return posterior.predict(case.query)


def test_float32_networks_are_answered_in_float32():
    case = by_name("float32, two outputs")
    expected = case.fit(ntkgp.LowRank(rank=4, side="weights"), generator=seeded()).predict(case.query)
    for found in results(3, float32_answers, 3):
        assert found.mean.dtype == found.upper.dtype == torch.float32
        torch.testing.assert_close(found.mean, expected.mean, rtol=1e-3, atol=1e-4)


def functions_and_files(rank: int, size: int, memory: int | None, path: str):
    """Samples, a file written by the last rank alone, and queries that differ from rank to rank."""
    case, x, y, noise = shard_of("paper mlp", size, rank, "uneven")
    group = ntkgp.distributed.Group(timeout=TIMEOUT, memory=memory)
    posterior = ntkgp.fit(case.module(), x, y, noise_var=noise, method=METHODS["rank"], generator=seeded(), group=group)
    assert isinstance(posterior, LowRankPosterior)
    drawn = posterior.sample(3, generator=seeded(5 + rank))(case.query)
    own = posterior.predict(case.query[: rank + 1]).variance
    if memory is not None:
        with pytest.raises(ValueError, match=r"posterior\.whole"):
            posterior.save(path)
        posterior = posterior.whole()
    with pytest.raises(ValueError, match="fitted by a group"):
        posterior.update(case.x[:1], case.y[:1])
    before = posterior.predict(case.query).variance  # of a posterior that is whole, by any rank by itself
    if rank == size - 1:
        posterior.save(path)
        again = ntkgp.load(path, case.module())
        assert torch.equal(again.predict(case.query).variance, before)
        with pytest.raises(ValueError, match="not saved in files"):
            again.sample(1)
    return drawn, own, before


@pytest.mark.parametrize("memory", [None, 1], ids=["copies", "split"])
def test_functions_queries_and_files(memory: int | None, tmp_path: Path):
    case = by_name("paper mlp")
    posterior = case.fit(METHODS["rank"], generator=seeded())
    drawn, variance = posterior.sample(3, generator=seeded(5))(case.query), posterior.predict(case.query).variance
    for rank, found in enumerate(results(2, functions_and_files, 2, memory, str(tmp_path / "posterior.safetensors"))):
        torch.testing.assert_close(found[0], drawn, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(found[1], variance[: rank + 1], rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(found[2], variance, rtol=1e-7, atol=1e-8)


def weights_in_a_file(rank: int, size: int, path: str):
    case, x, y, noise = shard_of("more points than parameters", size, rank, "uneven")
    group = ntkgp.distributed.Group(timeout=TIMEOUT)
    posterior = ntkgp.fit(case.module(), x, y, noise_var=noise, method=ntkgp.Exact("weights"), group=group)
    assert isinstance(posterior, ExactPosterior)
    likelihood = posterior.log_marginal_likelihood
    if rank == size - 1:
        posterior.save(path)
        for _ in range(2):  # also a file of a loaded one
            again = ntkgp.load(path, case.module())
            assert isinstance(again, ExactPosterior)
            assert abs(again.log_marginal_likelihood - likelihood) <= 1e-9 * abs(likelihood)
            with pytest.raises(ValueError, match="fitted by a group"):
                again.update(case.x[:1], case.y[:1])
            again.save(path)
    return torch.tensor(likelihood)


def test_a_file_of_several_ranks_knows_the_points_that_it_does_not_hold(tmp_path: Path):
    whole = by_name("more points than parameters").fit(ntkgp.Exact())
    assert isinstance(whole, ExactPosterior)
    expected = whole.log_marginal_likelihood
    for found in results(2, weights_in_a_file, 2, str(tmp_path / "posterior.safetensors")):
        assert abs(float(found) - expected) <= 1e-5 * abs(expected)


def tuned_values(rank: int, size: int, rows: int, noise_known: bool):
    x = torch.randn(rows, 2, generator=seeded(1), dtype=torch.float64)
    y, here = torch.sin(2 * x[:, 0]) + 0.1 * x[:, 1], cut(rows, max(size, 1), rank, "uneven" if rows < 100 else "even")
    noise = 0.01 + 0.01 * torch.rand(rows, generator=seeded(2), dtype=torch.float64)
    net = ntkgp.mlp(2, width=8, activation=nn.SiLU(), generator=seeded()).double()
    options = {"points": 30, "starts": 1, "steps": 5, "generator": seeded(rank)}
    options |= {"noise_var": noise if size == 0 else noise[here]} if noise_known else {}
    if size == 0:
        found = ntkgp.tune(net, x, y, **options)
    else:
        found = ntkgp.tune(net, x[here], y[here], group=ntkgp.distributed.Group(timeout=TIMEOUT), **options)
        if noise_known:
            assert torch.equal(torch.as_tensor(found.noise_var), noise[here])
    scales = torch.cat(list(found.input_scales.values()))
    assert isinstance(found.prior_var, dict)
    numbers = [found.log_marginal_likelihood, found.leave_one_out, *found.prior_var.values(), *scales.tolist()]
    return torch.tensor([*numbers, *([] if noise_known else [float(found.noise_var)])], dtype=torch.float64)


@pytest.mark.parametrize("rows", [40, 10_100])
def test_tuning_is_that_of_one_process(rows: int):
    """All points gathered, or where they are many a subset drawn from those of all ranks."""
    for noise_known in (False, True):
        size = 0
        expected = tuned_values(0, size, rows, noise_known)
        for found in results(2, tuned_values, 2, rows, noise_known):
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def spent(rank: int, size: int, split: bool):
    case, x, y, noise = shard_of("more points than parameters", size, rank, "even")
    group = ntkgp.distributed.Group(timeout=TIMEOUT, memory=1 if split else None)
    bytes_at = []
    product = Operators.normal

    def counted(self, v: Tensor) -> Tensor:
        before = vars(group.traffic).copy()
        out = product(self, v)
        after = group.traffic
        bytes_at.append((v.shape[1], after.reduced - before["reduced"], after.gathered - before["gathered"]))
        return out

    Operators.normal = counted
    posterior = ntkgp.fit(case.module(), x, y, noise_var=noise, method=METHODS["rank"], group=group, generator=seeded())
    assert isinstance(posterior, LowRankPosterior)
    return posterior.problem.operators.parameters, posterior.solution.iterations, bytes_at, vars(group.traffic)


@pytest.mark.parametrize("split", [False, True], ids=["copies", "split"])
def test_traffic_is_as_documented(split: bool):
    """docs/distributed.md: 8·P·S bytes summed for a product with S columns, and where vectors are split as many gathered."""
    for parameters, iterations, products, total in results(2, spent, 2, split):
        assert iterations > 0
        padded = 2 * -(-parameters // 2)
        for columns, reduced, gathered in products:
            assert reduced == 8 * parameters * columns
            assert gathered == (8 * padded // 2 * columns if split else 0)
        in_products = sum(reduced for _, reduced, _ in products)
        if not split:  # beside products: the right-hand sides of the mean and three draws, and two numbers: trace and ‖r̃‖²
            assert total["reduced"] == in_products + 8 * parameters * 4 + 16
            assert [columns for columns, *_ in products].count(4) >= iterations
        assert total["protocol"] < 10_000 + 8 * len(products)


def failing(rank: int, size: int, how: str):
    case, x, y, noise = shard_of("paper mlp", size, rank, "even")
    group, module, method = ntkgp.distributed.Group(timeout=5.0 if how == "hangs" else TIMEOUT), case.module(), METHODS["rank"]
    assert y is not None
    if how == "bad data" and rank == 1:
        y = y.clone()
        y[0] = torch.nan
    if how == "another network" and rank == 1:
        module = nn.Linear(2, 1).double()
    if how == "another rank" and rank == 1:
        method = ntkgp.LowRank(rank=2)
    if how == "another shape" and rank == 1:
        x = x[:, :1]
    if how in ("killed", "late error", "hangs") and rank == 1:
        calls, product = [0], Operators.normal

        def fails(self, v: Tensor) -> Tensor:
            calls[0] += 1
            if calls[0] == 12:
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "late error":
                    raise MemoryError("nothing left")
                time.sleep(8)
            return product(self, v)

        Operators.normal = fails
    try:
        ntkgp.fit(module, x, y, noise_var=noise, method=method, group=group, generator=seeded())
    except Exception as error:
        group = ntkgp.distributed.Group(timeout=TIMEOUT) if how in ("bad data", "late error") else group
        again = group.total(1.0) if how in ("bad data", "late error") else None
        return type(error).__name__, str(error), again
    return "nothing", "", None


@pytest.mark.parametrize(
    ("how", "there", "elsewhere"),
    [
        ("bad data", "y holds NaN", "rank 1 stopped: ValueError: y holds NaN"),
        ("late error", "nothing left", "rank 1 stopped: OutOfMemoryError: nothing left"),
        ("another network", "module differs between ranks", "module differs between ranks"),
        ("another rank", "method differs between ranks", "method differs between ranks"),
        ("another shape", "x and y must have the same shapes", "x and y must have the same shapes"),
        ("killed", None, "another rank was lost"),
        ("hangs", "", "another rank did not answer within 5 s"),
    ],
)
def test_the_error_of_one_rank_stops_all(how: str, there: str | None, elsewhere: str):
    found = run(3, failing, 3, how)
    for rank, answer in enumerate(found):
        if there is None and rank == 1:
            assert isinstance(answer, Died)
            continue
        kind, message, again = answer
        assert (there if rank == 1 else elsewhere) in message, answer
        assert kind == "GroupError" or rank == 1
        assert again in (None, 3.0)  # the process group itself is whole: a new Group can be made of it


def test_without_a_group():
    with pytest.raises(RuntimeError, match="not initialised"):
        ntkgp.distributed.Group()


def refused(rank: int):
    case, x, y, noise = shard_of("paper mlp", 2, rank, "even")
    messages, groups = [], []  # kept: one that goes closes connections which the other rank may still be making
    assert y is not None
    tries: list[dict] = [
        {"method": ntkgp.LowRank(rank=2, side="kernel")},
        {"method": ntkgp.Exact("kernel"), "x": x[:1].expand(200_000, -1), "y": y[:1].expand(200_000)},
        {"method": ntkgp.Exact("kernel"), "checkpoint": "somewhere"},
        {"method": ntkgp.LowRank(rank=2), "x": x[:0], "y": y[:0]},
        {"method": ntkgp.LowRank(rank=2), "group": 5},
    ]
    for options in tries:
        groups.append(ntkgp.distributed.Group(timeout=TIMEOUT))
        arguments = {"x": x, "y": y, "group": groups[-1], **options}
        try:
            ntkgp.fit(case.module(), noise_var=noise, **arguments)
        except (ValueError, TypeError, ntkgp.distributed.GroupError) as error:
            messages.append(str(error))
    return messages


def test_what_a_group_cannot_do_is_said():
    expected = [
        "side must be None, 'weights' or 'matrix' with a group",
        "rows, got 400,000",
        "the kernel matrix cannot be resumed",
        "no rank has any points",
        "group must be a process group",
    ]
    for found in results(2, refused):
        assert len(found) == len(expected)
        for message, words in zip(found, expected, strict=True):
            assert words in message


def some_ranks(rank: int):
    """A fit by ranks 0 and 2, while rank 1 does something else."""
    pair = torch.distributed.new_group([0, 2])
    if rank == 1:
        return None
    assert isinstance(pair, torch.distributed.ProcessGroup)
    case, x, y, noise = shard_of("paper mlp", 2, rank // 2, "even")
    posterior = ntkgp.fit(case.module(), x, y, noise_var=noise, method=METHODS["rank"], generator=seeded(rank), group=pair)
    return vars(posterior.predict(case.query, noise_var=0.1)), posterior.covariance(case.query)


def test_a_group_of_some_ranks():
    first, nobody, last = results(3, some_ranks)
    assert nobody is None
    check(first, alone("paper mlp", "rank"))
    check(last, alone("paper mlp", "rank"))


def loses_another(rank: int, size: int):
    """Rank 1 fails; what is left of rank 0's connections while somebody still holds the error."""
    group = ntkgp.distributed.Group(timeout=TIMEOUT)
    connections, caught = weakref.ref(group._control), None
    gc.disable()
    try:
        with group.together():
            if rank == 1:
                raise ValueError("nothing left")
            group.total(1.0)
    except Exception as error:
        caught = error
    return type(caught).__name__, connections() is None


def test_a_rank_that_learns_of_an_error_closes_its_connections_at_once():
    """The frames of the error would hold them open, and a third rank that waits for this one would wait for its timeout."""
    assert results(2, loses_another, 2) == [("GroupError", True), ("ValueError", True)]
