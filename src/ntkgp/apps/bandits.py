"""Contextual bandits on posteriors of networks: choose an arm, observe its reward, know a little more."""

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
    """Optimism: the score of an arm is mean + √β · std of its expected reward; β = 0 is greedy.

    Example:
        >>> UCB(beta=4.0)  # two standard deviations
        UCB(beta=4.0)
    """

    beta: float = 4.0

    def __post_init__(self):
        if not 0 <= self.beta < math.inf:
            raise ValueError(f"beta must be a finite number of at least 0, got {self.beta!r}")

    def scores(self, posterior: Posterior, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """One score a row of x."""
        p = posterior.predict(x)
        return p.mean + math.sqrt(self.beta) * p.std


@dataclass(frozen=True)
class Thompson:
    """Probability matching: the score of an arm is the value of a function drawn from the posterior.

    One draw serves all contexts of a call of ``choose``, and with a shared network all arms: what is drawn is a whole function.

    Example:
        >>> Thompson()
        Thompson()
    """

    def scores(self, posterior: Posterior, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """One score a row of x."""
        return posterior.sample(1, generator=generator)(x)[0]


class Bandit:
    """A contextual bandit: which arm to play in a context, learned from the rewards of those that were played.

    The expected reward has the Gaussian-process prior of a network: one network an arm, the arms then being independent; or one
    shared network, which sees the context followed by the arm as zeros and a one and carries over what it learns from arm to
    arm (put a module in front that reads them, for a network of several heads). Rewards are taken as they are: `prior_mean` and
    `prior_var` say where they are expected and how far from there. With ``Exact()`` and n observations of a network, a new one
    and a context asked about cost n² operations each; memory n² numbers, and with a `refresh` all that was seen.

    NeuralUCB (Zhou et al. 2020) is ``Bandit(net, UCB(γ²), arms=k, noise_var=1, prior_var=1/λ)`` with a network in the NTK
    parametrisation and its tangent at initial weights; a `refresh` that trains it moves that to the current ones. Their matrix
    Z is there in full, where they run its diagonal. NeuralTS (Zhang et al. 2021): ``Thompson()``, ``noise_var=λν²``,
    ``prior_var=ν²``; they draw each arm by itself, here one function is drawn for all.

    Args:
        network: one module an arm, each mapping (M, D) contexts to (M,) or (M, 1); or one shared module of D + k inputs.
        explore: :class:`UCB` or :class:`Thompson`.
        arms: their number k, for a shared network; None for a network an arm.
        noise_var: variance of a reward around its expectation.
        prior_var: as for :func:`ntkgp.fit`; it sets the scale of the rewards.
        prior_mean: as for ``fit``.
        method: as for ``fit``.
        pulls: every arm is played this often before scores are looked at.
        interval: posteriors are updated when so many rewards are waiting; a call of ``observe`` may bring several.
        skip: rewards that tell nothing are not added to a posterior: its variance there is below ``skip · noise_var`` and they
            came as expected, within two standard deviations. 0 adds all; 0.1 keeps long runs cheap.
        refresh: called with (contexts, arms, rewards), all that was seen, when there are `refresh_after` and whenever they have
            doubled since; returns the posteriors to go on with, one for each network, fitted to ``encode(contexts, arms)``.
        refresh_after: observations before the first refresh.
        generator: source of the draws; the global one when None.

    Attributes:
        posteriors: one for each network; None before its first observation.
        counts: (k,), how often each arm was observed.

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
        self._refresh, self._next_refresh, self._features = refresh, refresh_after, None  # D, once a context has come
        # Contexts, arms, rewards as they came: those that are not yet in the posteriors; and all of them, for a refresh.
        self._waiting, self._known = list[tuple[Tensor, ...]](), list[tuple[Tensor, ...]]()

    def choose(self, context: Tensor) -> Tensor:
        """The arm to play in each of M contexts, (M, D) → (M,); arms that lack pulls come first, the least pulled before."""
        self._check_context(context)
        missing = (self.pulls - self.counts).clamp_min(0)
        first = [arm for turn in range(int(missing.max()), 0, -1) for arm in range(self.arms) if missing[arm] >= turn]
        if None in self.posteriors:  # nothing to go by yet: around and around, from call to call
            first += [(int(self.counts.sum()) + k) % self.arms for k in range(len(context))]
        arms = torch.tensor(first[: len(context)], dtype=torch.long, device=context.device)
        rest = context[len(arms) :]
        return torch.cat([arms, self.scores(rest).argmax(dim=1)]) if len(rest) else arms

    def scores(self, context: Tensor) -> Tensor:
        """What ``choose`` maximises: (M, D) → (M, k); one draw of functions a call with ``Thompson()``."""
        self._check_context(context)
        asked = [one for one in self.posteriors if one is not None]
        if len(asked) < len(self.posteriors):
            raise ValueError("there are no scores before every arm was observed; choose plays the missing ones first")
        if self.shared:
            x = self.encode(context.repeat_interleave(self.arms, dim=0), torch.arange(self.arms).repeat(len(context)))
            return self.explore.scores(asked[0], x, self.generator).view(-1, self.arms)
        return torch.stack([self.explore.scores(one, context, self.generator) for one in asked], dim=1)

    def observe(self, context: Tensor, arm: Tensor, reward: Tensor) -> None:
        """Rewards (M,) that were paid for arms (M,) played in contexts (M, D)."""
        self._check_context(context)
        if arm.shape != context.shape[:1] or arm.dtype != torch.long or not bool(((arm >= 0) & (arm < self.arms)).all()):
            raise ValueError(f"arm must be {len(context)} whole numbers from 0 to {self.arms - 1}, got {arm}")
        if reward.shape != arm.shape or not reward.is_floating_point() or not bool(torch.isfinite(reward).all()):
            raise ValueError(f"reward must be {len(arm)} finite floating numbers, got {reward}")
        self._waiting.append(tuple(part.detach().to(context.device, copy=True) for part in (context, arm, reward)))
        self._features = context.shape[1]
        self.counts += torch.bincount(arm.cpu(), minlength=self.arms)
        if sum(len(arms) for _, arms, _ in self._waiting) >= self.interval:
            self._learn()

    def encode(self, context: Tensor, arm: Tensor) -> Tensor:
        """What the networks see: the context alone, or for a shared one followed by the arm as zeros and a one."""
        ones = nn.functional.one_hot(arm.to(context.device), self.arms).to(context)
        return torch.cat([context, ones], dim=1) if self.shared else context

    def _learn(self) -> None:
        """Bring what is waiting into the posteriors; get new ones when it is time."""
        waiting, self._waiting = self._waiting, []
        contexts, arms, rewards = map(torch.cat, zip(*waiting, strict=True))
        self._known += waiting if self._refresh is not None else []
        if self._refresh is not None and int(self.counts.sum()) >= self._next_refresh:
            self._known = [tuple(map(torch.cat, zip(*self._known, strict=True)))]
            self._next_refresh = 2 * len(self._known[0][1])
            found = list(self._refresh(*self._known[0]))
            if len(found) != len(self.posteriors) or not all(isinstance(one, Posterior) for one in found):
                raise ValueError(f"refresh must return {len(self.posteriors)} posteriors of ntkgp.fit, got {found}")
            self.posteriors = [*found]
            return
        for k, posterior in enumerate(self.posteriors):
            rows = (arms == k) | self.shared
            x, y = self.encode(contexts, arms)[rows], rewards[rows]
            if posterior is not None and self.skip > 0 and len(y):
                p = posterior.predict(x)
                told = ((y - p.mean).abs() > 2 * p.total_std) | (p.variance > self.skip * (p.total_std**2 - p.variance))
                x, y = x[told], y[told]
            if len(y) and posterior is None:
                self.posteriors[k] = fit(self._networks[k], x, y, **self._options, generator=self.generator)
            elif len(y) and posterior is not None:
                self.posteriors[k] = posterior.update(x, y, generator=self.generator)

    def _check_context(self, context: Tensor) -> None:
        check_inputs(context, self._networks[0], "context")
        if context.ndim != 2 or self._features not in (None, context.shape[1]):
            raise ValueError(f"contexts must be a table, (M, D), with D always the same, got shape {tuple(context.shape)}")
