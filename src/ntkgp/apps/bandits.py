"""Contextual bandits on posteriors of networks: choose an arm, observe its reward, update the posterior."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ntkgp._system.check_data import check_inputs
from ntkgp._system.check_module import check_module
from ntkgp._system.check_options import check_count
from ntkgp._system.types import MeanFunction
from ntkgp.posterior.fit import Method, fit
from ntkgp.posterior.interface import Posterior

Refresh = Callable[[Tensor, Tensor, Tensor], Sequence[Posterior]]


@dataclass(frozen=True)
class UCB:
    """Upper confidence bound: the score of an arm is mean + √β · std of its expected reward; β = 0 is greedy.

    Example:
        >>> UCB(beta=4.0)  # two standard deviations
        UCB(beta=4.0)
    """

    beta: float = 4.0

    def __post_init__(self):
        if not 0 <= self.beta < math.inf:
            raise ValueError(f"beta must be a finite number of at least 0, got {self.beta!r}")

    def scores(self, posterior: Posterior, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """One score per row of x."""
        p = posterior.predict(x)
        return p.mean + math.sqrt(self.beta) * p.std


@dataclass(frozen=True)
class Thompson:
    """Probability matching: the score of an arm is the value of a function drawn from the posterior.

    Each call of ``choose`` draws one function and uses it for all contexts; with a shared network also for all arms.

    Example:
        >>> Thompson()
        Thompson()
    """

    def scores(self, posterior: Posterior, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """One score per row of x."""
        return posterior.sample(1, generator=generator)(x)[0]


class Bandit:
    """A contextual bandit: learns from observed rewards which arm to play in a context.

    The expected reward has the Gaussian-process prior of a network. Either each arm has its own network, and the arms are
    independent; or all arms share one network whose input is the context followed by the one-hot arm, so that a reward of one
    arm also informs the others (for a network with one output head per arm, put a module in front that reads the one-hot
    part). Rewards are not standardised: `prior_mean` and `prior_var` must describe their level and scale. With ``Exact()`` and
    n observations of a network, each new observation and each queried context cost n² operations; memory n² numbers, plus
    all observations if `refresh` is given.

    NeuralUCB (Zhou et al. 2020) is ``Bandit(net, UCB(γ²), arms=k, noise_var=1, prior_var=1/λ)`` with a network in the NTK
    parametrisation and its tangent at the initial weights; a `refresh` that trains the network moves the tangent to the
    current weights. This class uses their full matrix Z; their experiments use its diagonal. NeuralTS (Zhang et al. 2021):
    ``Thompson()``, ``noise_var=λν²``, ``prior_var=ν²``; they draw each arm separately, this class draws one function for all.

    Args:
        network: one module per arm, each mapping (M, D) contexts to (M,) or (M, 1); or one shared module with D + k inputs.
        explore: :class:`UCB` or :class:`Thompson`.
        arms: number k of arms, for a shared network; None with one network per arm.
        noise_var: variance of a reward around its expectation.
        prior_var: as for :func:`ntkgp.fit`; it sets the scale of the rewards.
        prior_mean: as for ``fit``.
        method: as for ``fit``.
        pulls: number of times every arm is played before the scores decide.
        interval: number of stored rewards that triggers an update of the posteriors; one call of ``observe`` may add several.
        skip: do not add a reward to a posterior if it is uninformative: the variance there is below ``skip · noise_var`` and
            the reward lies within two standard deviations of its mean. 0 adds every reward; 0.1 makes long runs cheap.
        refresh: function of all observations (contexts, arms, rewards); returns new posteriors, one per network, fitted to
            ``encode(contexts, arms)``. Called at `refresh_after` observations and each time their number has doubled.
        refresh_after: number of observations before the first refresh.
        generator: source of the draws; None for the global one.

    Attributes:
        posteriors: one per network; None before its first observation.
        counts: (k,), number of observations of each arm.

    Example:
        >>> import torch, ntkgp
        >>> from ntkgp.bandits import UCB, Bandit
        >>> g = torch.Generator().manual_seed(0)
        >>> bandit = Bandit([ntkgp.mlp(1, width=32, generator=g) for _ in range(2)], UCB(4.0), noise_var=0.01)
        >>> for x in torch.rand(40, 1, 1, generator=g) * 2 - 1:  # arm 1 pays x, arm 0 pays −x
        ...     arm = bandit.choose(x)
        ...     bandit.observe(x, arm, torch.where(arm == 1, x[:, 0], -x[:, 0]))
        >>> bandit.choose(torch.tensor([[-0.8], [0.8]]))
        tensor([0, 1])
    """

    def __init__(
        self, network: nn.Module | Sequence[nn.Module], explore: UCB | Thompson, *, arms: int | None = None, noise_var: float,
        prior_var: float = 1.0, prior_mean: MeanFunction | None = None, method: Method | None = None, pulls: int = 1,
        interval: int = 1, skip: float = 0.0, refresh: Refresh | None = None, refresh_after: int = 100,
        generator: torch.Generator | None = None,
    ):  # fmt: skip
        self.shared = isinstance(network, nn.Module)
        modules = [network] if isinstance(network, nn.Module) else list(network)
        if self.shared == (arms is None):
            raise ValueError("pass one shared module and the number of arms=k, or a list of k modules and no arms")
        if not isinstance(explore, UCB | Thompson):
            raise TypeError(f"explore must be UCB(...) or Thompson(), got {explore!r}; add parentheses?")
        if not 0 <= skip < math.inf:
            raise ValueError(f"skip must be a finite number of at least 0, got {skip!r}")
        self.arms = len(modules) if arms is None else arms
        check_count(self.arms, "arms", 2)
        for name, value in {"pulls": pulls, "interval": interval, "refresh_after": refresh_after}.items():
            check_count(value, name, 1)
        for module in modules:
            check_module(module)
        self.explore, self.pulls, self.interval, self.skip, self.generator = explore, pulls, interval, skip, generator
        self.posteriors: list[Posterior | None] = [None] * len(modules)
        self.counts, self._networks = torch.zeros(self.arms, dtype=torch.long), copy.deepcopy(modules)
        self._options = {"noise_var": noise_var, "prior_var": prior_var, "prior_mean": prior_mean, "method": method}
        self._refresh, self._next_refresh = refresh, refresh_after
        self._features: int | None = None  # D, set by the first observation
        # Tuples of contexts, arms, rewards: those not yet in the posteriors, and all of them, for a refresh.
        self._waiting, self._known = list[tuple[Tensor, ...]](), list[tuple[Tensor, ...]]()

    def choose(self, context: Tensor) -> Tensor:
        """The arm to play in each of M contexts, (M, D) → (M,). Arms observed fewer than `pulls` times come first."""
        self._check_context(context)
        missing = (self.pulls - self.counts).clamp_min(0)
        first = [arm for turn in range(int(missing.max()), 0, -1) for arm in range(self.arms) if missing[arm] >= turn]
        if None in self.posteriors:  # no scores yet: take the arms in turn, continuing from call to call
            first += [(int(self.counts.sum()) + k) % self.arms for k in range(len(context))]
        arms = torch.tensor(first[: len(context)], dtype=torch.long, device=context.device)
        rest = context[len(arms) :]
        return torch.cat([arms, self.scores(rest).argmax(dim=1)]) if len(rest) else arms

    def scores(self, context: Tensor) -> Tensor:
        """The scores that ``choose`` maximises: (M, D) → (M, k). ``Thompson()`` draws new functions in each call."""
        self._check_context(context)
        asked = [one for one in self.posteriors if one is not None]
        if len(asked) < len(self.posteriors):
            raise ValueError("there are no scores before every arm was observed; choose plays the missing arms first")
        if self.shared:
            x = self.encode(context.repeat_interleave(self.arms, dim=0), torch.arange(self.arms).repeat(len(context)))
            return self.explore.scores(asked[0], x, self.generator).view(-1, self.arms)
        return torch.stack([self.explore.scores(one, context, self.generator) for one in asked], dim=1)

    def observe(self, context: Tensor, arm: Tensor, reward: Tensor) -> None:
        """Add the rewards (M,) of the arms (M,) that were played in the contexts (M, D)."""
        self._check_context(context)
        if arm.shape != context.shape[:1] or arm.dtype != torch.long or not bool(((arm >= 0) & (arm < self.arms)).all()):
            raise ValueError(f"arm must be {len(context)} whole numbers from 0 to {self.arms - 1}, got {arm}")
        if reward.shape != arm.shape or not reward.is_floating_point() or not bool(torch.isfinite(reward).all()):
            raise ValueError(f"reward must be {len(arm)} finite floating-point numbers, got {reward}")
        self._waiting.append(tuple(part.detach().to(context.device, copy=True) for part in (context, arm, reward)))
        self._features = context.shape[1]
        self.counts += torch.bincount(arm.cpu(), minlength=self.arms)
        if sum(len(arms) for _, arms, _ in self._waiting) >= self.interval:
            self._learn()

    def encode(self, context: Tensor, arm: Tensor) -> Tensor:
        """The inputs of the networks: the context, followed by the one-hot arm if the network is shared."""
        ones = nn.functional.one_hot(arm.to(context.device), self.arms).to(context)
        return torch.cat([context, ones], dim=1) if self.shared else context

    def _learn(self) -> None:
        """Add the waiting rewards to the posteriors, or refresh the posteriors if it is time."""
        waiting, self._waiting = self._waiting, []
        contexts, arms, rewards = map(torch.cat, zip(*waiting, strict=True))
        self._known += waiting if self._refresh is not None else []
        if self._refresh is not None and int(self.counts.sum()) >= self._next_refresh:
            self._known = [tuple(map(torch.cat, zip(*self._known, strict=True)))]
            self._next_refresh = 2 * len(self._known[0][1])
            found = list(self._refresh(*self._known[0]))
            if len(found) != len(self.posteriors) or not all(isinstance(one, Posterior) for one in found):
                raise ValueError(f"refresh must return {len(self.posteriors)} posteriors from ntkgp.fit, got {found}")
            self.posteriors = [*found]
            return
        for k, posterior in enumerate(self.posteriors):
            rows = (arms == k) | self.shared
            x, y = self.encode(contexts, arms)[rows], rewards[rows]
            if posterior is not None and self.skip > 0 and len(y):
                p = posterior.predict(x)
                noise = p.total_std**2 - p.variance
                informative = ((y - p.mean).abs() > 2 * p.total_std) | (p.variance > self.skip * noise)
                x, y = x[informative], y[informative]
            if len(y) and posterior is None:
                self.posteriors[k] = fit(self._networks[k], x, y, **self._options, generator=self.generator)
            elif len(y) and posterior is not None:
                self.posteriors[k] = posterior.update(x, y, generator=self.generator)

    def _check_context(self, context: Tensor) -> None:
        check_inputs(context, self._networks[0], "context")
        if context.ndim != 2 or self._features not in (None, context.shape[1]):
            raise ValueError(f"contexts must be a table, (M, D), always with the same D, got shape {tuple(context.shape)}")
