"""Bandits: scores against a dense oracle, frequencies of Thompson sampling, NeuralUCB and NeuralTS by their own formulas."""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from ntkgp.bandits import UCB, Bandit, Thompson
from tests.support import oracle
from tests.support.typechecker import repeated
from tests.support.unchanged import unchanged

# Thousands of draws are slow with a shape checker.
pytestmark = pytest.mark.usefixtures("unchecked")

ARMS, NOISE, PRIOR = 3, 0.05, 2.0
DRAWS = {"per arm": 400, "shared": 3000}
X = torch.rand(30, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 1
QUERY = torch.rand(7, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 2 - 1
PLAYED = torch.arange(30) % ARMS
REWARD = torch.sin(3 * X[:, 0] + PLAYED) * X[:, 1]


def nets(count: int = ARMS, inputs: int = 2, width: int = 16) -> list[nn.Module]:
    g = torch.Generator().manual_seed(0)
    return [ntkgp.mlp(inputs, width=width, activation=nn.SiLU(), generator=g).double() for _ in range(count)]


def shared(**options: Any) -> Bandit:
    return Bandit(nets(1, 2 + ARMS)[0], arms=ARMS, **{"noise_var": NOISE, "prior_var": PRIOR, "explore": UCB(), **options})


def per_arm(**options: Any) -> Bandit:
    return Bandit(nets(), **{"noise_var": NOISE, "prior_var": PRIOR, "explore": UCB(), **options})


def encoded(x: Tensor, arm: Tensor) -> Tensor:
    return torch.cat([x, torch.eye(ARMS).double()[arm]], dim=1)


def moments(layout: str) -> tuple[Tensor, Tensor]:
    """Mean (M, k) and covariance (M, k, k) of the arms at each query, written out."""
    if layout == "per arm":
        rows = [torch.arange(k, 30, ARMS) for k in range(ARMS)]
        asked = [oracle.pose(net, X[own], REWARD[own], QUERY, NOISE, PRIOR) for own, net in zip(rows, nets(), strict=True)]
        mean = torch.stack([one.mean for one in asked], dim=1)
        variance = torch.stack([one.covariance.diagonal() for one in asked], dim=1)
        return mean, torch.diag_embed(variance)
    every = torch.arange(ARMS).repeat(len(QUERY))
    query = encoded(QUERY.repeat_interleave(ARMS, dim=0), every)
    one = oracle.pose(nets(1, 2 + ARMS)[0], encoded(X, PLAYED), REWARD, query, NOISE, PRIOR)
    covariance = one.covariance.view(len(QUERY), ARMS, len(QUERY), ARMS).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    return one.mean.view(-1, ARMS), covariance


LAYOUTS: dict[str, Callable[..., Bandit]] = {"per arm": per_arm, "shared": shared}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("beta", [0.0, 4.0])
def test_optimistic_scores_are_those_of_the_dense_posterior(layout: str, beta: float):
    bandit = LAYOUTS[layout](explore=UCB(beta))
    for rows in torch.arange(30).split(7):  # in parts: fits, then updates
        bandit.observe(X[rows], PLAYED[rows], REWARD[rows])
    mean, covariance = moments(layout)
    expected = mean + math.sqrt(beta) * covariance.diagonal(dim1=1, dim2=2).sqrt()
    assert oracle.error(bandit.scores(QUERY), expected) < 1e-8
    assert torch.equal(bandit.choose(QUERY), expected.argmax(dim=1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_thompson_plays_arms_as_often_as_they_are_best(layout: str):
    bandit = LAYOUTS[layout](explore=Thompson(), generator=torch.Generator().manual_seed(3))
    some = torch.arange(9)  # few, so that there is doubt
    bandit.observe(X[some], PLAYED[some], REWARD[some])
    draws = torch.stack([bandit.choose(QUERY) for _ in repeated(range(DRAWS[layout]))])
    played = nn.functional.one_hot(draws, ARMS).double().mean(dim=0)
    reference = LAYOUTS[layout](explore=UCB(0.0))
    reference.observe(X[some], PLAYED[some], REWARD[some])
    g, tolerance, apart = torch.Generator().manual_seed(4), 4 * math.sqrt(0.25 / DRAWS[layout]) + 0.005, 0.0
    for m in range(len(QUERY)):
        mean = reference.scores(QUERY[m : m + 1])[0]
        if layout == "per arm":
            covariance = torch.stack([p.predict(QUERY[m : m + 1]).variance[0] for p in reference.posteriors if p]).diag()
        else:
            assert reference.posteriors[0] is not None
            covariance = reference.posteriors[0].covariance(encoded(QUERY[m].expand(ARMS, 2), torch.arange(ARMS)))
        normal, factor = torch.randn(200_000, ARMS, generator=g, dtype=torch.float64), torch.linalg.cholesky(covariance)
        best, alone = (
            nn.functional.one_hot((mean + normal @ root.T).argmax(dim=1), ARMS).double().mean(dim=0)
            for root in (factor, covariance.diagonal().sqrt().diag())
        )
        assert float((played[m] - best).abs().max()) < tolerance
        apart = max(apart, float((alone - best).abs().max()))
    assert float(played.max(dim=1).values.min()) < 0.95  # there was doubt
    assert (apart > 2 * tolerance) == (layout == "shared")  # and draws of each arm by itself would have been seen


def test_neural_ucb_by_its_own_formula():
    gamma, lam, net = 0.7, 0.3, nets(1, 2 + ARMS)[0]
    bandit = Bandit(net, UCB(gamma**2), arms=ARMS, noise_var=1.0, prior_var=1 / lam)
    bandit.observe(X, PLAYED, REWARD)
    g = oracle.jacobian(net, encoded(X, PLAYED))  # 1/√m is inside the network
    Z = lam * torch.eye(g.shape[1]).double() + g.T @ g
    query = encoded(QUERY.repeat_interleave(ARMS, dim=0), torch.arange(ARMS).repeat(len(QUERY)))
    at = oracle.jacobian(net, query)
    mean = at @ torch.linalg.solve(Z, g.T @ REWARD)
    width = gamma * (at @ torch.linalg.solve(Z, at.T)).diagonal().sqrt()
    assert oracle.error(bandit.scores(QUERY).flatten(), mean + width) < 1e-8


def test_neural_thompson_sampling_has_the_variance_of_its_formula():
    nu, lam, net = 0.5, 0.4, nets(1, 2 + ARMS)[0]
    bandit = Bandit(net, Thompson(), arms=ARMS, noise_var=lam * nu**2, prior_var=nu**2)
    bandit.observe(X, PLAYED, REWARD)
    g = oracle.jacobian(net, encoded(X, PLAYED))
    U = lam * torch.eye(g.shape[1]).double() + g.T @ g
    at = oracle.jacobian(net, encoded(QUERY, torch.zeros(len(QUERY), dtype=torch.long)))
    assert bandit.posteriors[0] is not None
    p = bandit.posteriors[0].predict(encoded(QUERY, torch.zeros(len(QUERY), dtype=torch.long)))
    assert oracle.error(p.variance, nu**2 * lam * (at @ torch.linalg.solve(U, at.T)).diagonal()) < 1e-8


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("explore", [UCB(1.0), Thompson()])
def test_the_same_seed_plays_the_same_arms_and_nothing_else_changes(layout: str, explore: UCB | Thompson):
    def play() -> Tensor:
        bandit = LAYOUTS[layout](explore=explore, generator=torch.Generator().manual_seed(5), interval=4)
        arms = []
        for x in X.split(3):
            arms.append(bandit.choose(x))
            bandit.observe(x, arms[-1], torch.sin(3 * x[:, 0] + arms[-1]))
        return torch.cat(arms)

    with unchanged():
        first = play()
    assert torch.equal(first, play())


def test_modules_are_copied():
    modules = nets()
    with unchanged(*modules):
        bandit, late = (Bandit(modules, UCB(), noise_var=NOISE) for _ in range(2))
        bandit.observe(X, PLAYED, REWARD)
        before = bandit.scores(QUERY)
    with torch.no_grad():
        for p in modules[0].parameters():
            p.zero_()
    late.observe(X, PLAYED, REWARD)  # what was done to them in between is nothing to it
    assert torch.equal(late.scores(QUERY), before)
    assert torch.equal(bandit.scores(QUERY), before)


def test_every_arm_is_pulled_first_the_least_pulled_before():
    bandit = per_arm(pulls=2)
    assert bandit.choose(X[:7]).tolist() == [0, 1, 2, 0, 1, 2, 0]
    bandit.observe(X[:4], torch.tensor([0, 0, 1, 2]), REWARD[:4])
    arms = bandit.choose(X[:5])
    assert arms[:2].tolist() == [1, 2]
    assert torch.equal(arms[2:], bandit.scores(X[2:5]).argmax(dim=1))
    assert bandit.counts.tolist() == [2, 1, 1]


def test_arms_take_turns_while_rewards_wait():
    bandit, arms = per_arm(interval=12), []
    for x in X[:11].split(1):
        arms.append(bandit.choose(x))
        bandit.observe(x, arms[-1], REWARD[:1])
    assert torch.cat(arms).tolist() == [k % ARMS for k in range(11)]


def test_nothing_is_kept_that_nobody_will_ask_for():
    bandit = per_arm()
    for k in range(5):
        bandit.observe(X, PLAYED, REWARD + k)
    assert not bandit._known
    assert not bandit._waiting


def test_rewards_wait_for_the_interval():
    bandit, at_once = per_arm(interval=12), per_arm()
    bandit.observe(X[:9], PLAYED[:9], REWARD[:9])
    assert bandit.posteriors == [None] * ARMS
    bandit.observe(X[9:12], PLAYED[9:12], REWARD[9:12])
    at_once.observe(X[:12], PLAYED[:12], REWARD[:12])
    assert oracle.error(bandit.scores(QUERY), at_once.scores(QUERY)) < 1e-10


def test_rewards_that_tell_nothing_are_skipped_and_surprises_are_not():
    bandit = per_arm(skip=0.5)
    bandit.observe(X, PLAYED, REWARD)
    posterior = bandit.posteriors[0]
    assert posterior is not None
    known = X[PLAYED == 0][:1].repeat(40, 1)
    arm = torch.zeros(40, dtype=torch.long)
    bandit.observe(known, arm, posterior.predict(known).mean)  # brings the variance there down
    posterior = bandit.posteriors[0]
    assert posterior is not None
    mean = posterior.predict(known[:1]).mean
    bandit.observe(known[:1], arm[:1], mean)
    assert bandit.posteriors[0] is posterior
    assert bandit.counts[0] == 51  # seen all the same
    bandit.observe(known[:1], arm[:1], mean + 2.1 * math.sqrt(1.5 * NOISE))
    assert bandit.posteriors[0] is not posterior


def test_a_refresh_comes_at_doublings_and_its_posteriors_go_on():
    calls: list[int] = []

    def refresh(contexts: Tensor, arms: Tensor, rewards: Tensor) -> Sequence[ntkgp.posterior.Posterior]:
        calls.append(len(arms))
        return [ntkgp.fit(bandit_net, bandit.encode(contexts, arms), rewards, noise_var=0.5)]

    bandit_net = copy.deepcopy(nets(1, 2 + ARMS)[0])
    bandit = shared(refresh=refresh, refresh_after=5)
    for x, arm, reward in zip(X.split(1), PLAYED.split(1), REWARD.split(1), strict=True):
        bandit.observe(x, arm, reward)
    assert calls == [5, 10, 20]
    expected = ntkgp.fit(bandit_net, encoded(X, PLAYED), REWARD, noise_var=0.5)
    query = encoded(QUERY, torch.ones(len(QUERY), dtype=torch.long))
    assert bandit.posteriors[0] is not None
    assert oracle.error(bandit.posteriors[0].predict(query).mean, expected.predict(query).mean) < 1e-8
    wrong = per_arm(refresh=lambda *seen: [], refresh_after=1)
    with pytest.raises(ValueError, match="refresh must return 3 posteriors"):
        wrong.observe(X, PLAYED, REWARD)


def test_it_learns_a_reward_that_is_not_linear():
    """Over several seeds: a single one may follow a wrong arm for long."""
    regret, chance = [], []
    for seed in repeated(range(6)):
        g = torch.Generator().manual_seed(seed)
        bandit = per_arm(explore=Thompson(), noise_var=0.01, generator=g)
        for turn in range(40):
            x = torch.rand(10, 2, generator=g, dtype=torch.float64) * 2 - 1
            expected = torch.stack([torch.cos(4 * x[:, 0] + k) for k in range(ARMS)], dim=1)
            arm = bandit.choose(x)
            reward = expected.gather(1, arm.unsqueeze(1)).squeeze(1)
            bandit.observe(x, arm, reward + 0.1 * torch.randn(10, generator=g, dtype=torch.float64))
            if turn >= 30:
                regret.append(expected.max(dim=1).values - reward)
                chance.append(expected.max(dim=1).values - expected.mean(dim=1))
    assert torch.cat(regret).mean() < 0.3 * torch.cat(chance).mean()


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "shared without arms": (lambda: Bandit(nets()[0], UCB(), noise_var=1.0), ValueError, "one shared module and the number"),
    "list with arms": (lambda: Bandit(nets(), UCB(), arms=3, noise_var=1.0), ValueError, "a list of k modules and no arms"),
    "one arm": (lambda: Bandit(nets()[:1], UCB(), noise_var=1.0), ValueError, "arms must be at least 2, got 1"),
    "a class": (lambda: per_arm(explore=Thompson), TypeError, r"UCB\(...\) or Thompson\(\), .* add parentheses"),
    "negative beta": (lambda: UCB(-1.0), ValueError, "beta must be a finite number of at least 0, got -1.0"),
    "negative skip": (lambda: per_arm(skip=-1.0), ValueError, "skip must be"),
    "no pulls": (lambda: per_arm(pulls=0), ValueError, "pulls must be at least 1, got 0"),
    "scores of nothing": (lambda: per_arm().scores(X), ValueError, "no scores before every arm was observed"),
    "a vector": (lambda: per_arm().choose(X[0]), ValueError, r"a table, \(M, D\), .* got shape \(2,\)"),
    "an arm too high": (lambda: per_arm().observe(X, PLAYED + 1, REWARD), ValueError, "whole numbers from 0 to 2"),
    "arms that are floats": (lambda: per_arm().observe(X, PLAYED.double(), REWARD), ValueError, "30 whole numbers"),
    "NaN": (lambda: per_arm().observe(X, PLAYED, REWARD / 0), ValueError, "reward must be 30 finite"),
    "too few rewards": (lambda: per_arm().observe(X, PLAYED, REWARD[:3]), ValueError, "reward must be 30 finite"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_it_refuses(what: str):
    call, raises, words = BAD[what]
    with pytest.raises(raises, match=words):
        call()
