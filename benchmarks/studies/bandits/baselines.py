"""Baselines of the bandit benchmark, written from their papers: linear Thompson sampling, neural-linear, neural ε-greedy.

Settings are those of the authors' library (``deep_contextual_bandits`` of Riquelme et al. 2018, its example): prior IG(6, 6) on
the noise, precision 0.25 of the weights, two pulls of each arm first; one hidden layer of 50 ReLU units, weights uniform in
±0.3, 100 steps of RMSProp on minibatches of 512 every 50 contexts, learning rate 0.1 / (1 + step/2) started anew each time,
gradients clipped at norm 5. Every context is drawn for separately; as for all methods here, rewards are seen a batch at a time.
"""

import torch
from torch import Tensor

PULLS, PRECISION, SHAPE, RATE = 2, 0.25, 6.0, 6.0


class LinearThompson:
    """Bayesian linear regression of each arm on the context and a one (LinFullPost): noise and weights are drawn together."""

    def __init__(self, features: int, arms: int, generator: torch.Generator):
        self.arms, self.generator, self.counts = arms, generator, torch.zeros(arms, dtype=torch.long)
        self.sums(torch.zeros(0, features + 1).double(), torch.zeros(0).long(), torch.zeros(0).double())

    def sums(self, z: Tensor, arm: Tensor, reward: Tensor) -> None:
        """The statistics of these observations alone."""
        size, k = z.shape[1], self.arms
        self.precision = (PRECISION * torch.eye(size).double()).repeat(k, 1, 1)
        self.moment, self.square, self.seen = torch.zeros(k, size).double(), torch.zeros(k).double(), torch.zeros(k).double()
        self.add(z, arm, reward)

    def add(self, z: Tensor, arm: Tensor, reward: Tensor) -> None:
        """And these."""
        for k in range(self.arms):
            rows = arm == k
            self.precision[k] += z[rows].T @ z[rows]
            self.moment[k] += z[rows].T @ reward[rows]
            self.square[k] += reward[rows].square().sum()
            self.seen[k] += rows.sum()

    def features(self, context: Tensor) -> Tensor:
        """What the regression is on."""
        return torch.cat([context, torch.ones(len(context), 1).double()], dim=1)

    def choose(self, context: Tensor) -> Tensor:
        """The best arm of a draw for each context."""
        if int(self.counts.min()) < PULLS:
            return (int(self.counts.sum()) + torch.arange(len(context))) % self.arms
        z = self.features(context)
        factor = torch.linalg.cholesky(self.precision)
        mean = torch.cholesky_solve(self.moment.unsqueeze(2), factor).squeeze(2)
        rate = RATE + 0.5 * (self.square - (mean * self.moment).sum(dim=1))
        gamma = torch._standard_gamma((SHAPE + 0.5 * self.seen).expand(len(z), -1).contiguous(), generator=self.generator)
        noise = (rate.clamp_min(1e-12) / gamma).sqrt()  # (M, k), a draw for each context
        normal = torch.randn(self.arms, z.shape[1], len(z), generator=self.generator, dtype=torch.float64)
        weights = torch.linalg.solve_triangular(factor.mT, normal, upper=True)  # (k, d, M), covariance the inverse precision
        values = z @ mean.T + noise * torch.einsum("md,kdm->mk", z, weights)
        return values.argmax(dim=1)

    def observe(self, context: Tensor, arm: Tensor, reward: Tensor) -> None:
        """Rewards of the arms played."""
        self.counts += torch.bincount(arm, minlength=self.arms)
        self.add(self.features(context), arm, reward)


class Network:
    """The network of the two neural baselines: hidden units shared, one output an arm, trained on the arms that were played.

    The gradient is written out: a step this small costs ten times more by autograd.
    """

    def __init__(self, features: int, arms: int, generator: torch.Generator, every: int = 50, width: int = 50):
        self.generator, self.every, self.since = generator, every, 0
        sizes = [features * width, width, width * arms, arms]  # weights, biases, weights, biases
        self.weights, self.squares = torch.zeros(sum(sizes)), torch.ones(sum(sizes))  # as TensorFlow's RMSProp starts
        w, self.b, v, self.c = self.weights.split(sizes)
        self.w, self.v = w.view(features, width), v.view(width, arms)
        for part in (self.w, self.v):
            part.uniform_(-0.3, 0.3, generator=generator)
        self.data: list[tuple[Tensor, Tensor, Tensor]] = []

    def hidden(self, x: Tensor) -> Tensor:
        """The hidden units."""
        return torch.addmm(self.b, x.float(), self.w).relu_()

    def __call__(self, x: Tensor) -> Tensor:
        """What it expects of each arm."""
        return torch.addmm(self.c, self.hidden(x), self.v)

    def observe(self, context: Tensor, arm: Tensor, reward: Tensor) -> bool:
        """Store them; train if it is time, and return whether it was."""
        self.data.append((context, arm, reward))
        self.since += len(arm)
        if self.since < self.every:
            return False
        x, a, y = self.everything()
        for _ in range(self.since // self.every):
            self.train(x.float(), a, y.float())
        self.since %= self.every
        return True

    def everything(self) -> tuple[Tensor, Tensor, Tensor]:
        """All contexts, arms and rewards seen."""
        self.data = [tuple(torch.cat(parts) for parts in zip(*self.data, strict=True))]  # pyright: ignore
        return self.data[0]

    def gradient(self, x: Tensor, a: Tensor, y: Tensor) -> Tensor:
        """Of the mean squared error of the arms that were played."""
        h = self.hidden(x)
        played = torch.addmm(self.c, h, self.v).gather(1, a.unsqueeze(1))
        out = torch.zeros(len(a), len(self.c)).scatter_(1, a.unsqueeze(1), (played - y.unsqueeze(1)) * (2 / len(a)))
        back = (out @ self.v.T) * (h > 0)
        return torch.cat([(x.T @ back).flatten(), back.sum(dim=0), (h.T @ out).flatten(), out.sum(dim=0)])

    def train(self, x: Tensor, a: Tensor, y: Tensor) -> None:
        """A hundred steps of RMSProp."""
        for step in range(100):
            rows = torch.randint(len(a), (512,), generator=self.generator)
            gradient = self.gradient(x[rows], a[rows], y[rows])
            gradient *= 5.0 / gradient.norm().clamp_min(5.0)
            self.squares.mul_(0.9).addcmul_(gradient, gradient, value=0.1)
            self.weights.addcdiv_(gradient, (self.squares + 1e-10).sqrt_(), value=-0.1 / (1 + 0.5 * step))


class NeuralLinear(LinearThompson):
    """Bayesian linear regression of each arm on the network's hidden units, computed anew whenever the network was trained."""

    def __init__(self, features: int, arms: int, generator: torch.Generator):
        self.network = Network(features, arms, generator)
        super().__init__(len(self.network.b) - 1, arms, generator)

    def features(self, context: Tensor) -> Tensor:
        """The hidden units."""
        return self.network.hidden(context).double()

    def observe(self, context: Tensor, arm: Tensor, reward: Tensor) -> None:
        """Rewards of the arms played."""
        if self.network.observe(context, arm, reward):
            self.counts += torch.bincount(arm, minlength=self.arms)
            x, a, y = self.network.everything()
            self.sums(self.features(x), a, y)
        else:
            super().observe(context, arm, reward)


class EpsilonGreedy:
    """The network's best arm, or with probability ε = max(decayᵗ, least) any."""

    def __init__(self, features: int, arms: int, generator: torch.Generator, decay: float = 0.999, least: float = 0.0):
        self.network, self.arms, self.generator = Network(features, arms, generator), arms, generator
        self.decay, self.least, self.t = decay, least, 0

    def choose(self, context: Tensor) -> Tensor:
        """The best arm, or any."""
        if self.t < PULLS * self.arms:
            return (self.t + torch.arange(len(context))) % self.arms
        best = self.network(context).argmax(dim=1)
        any_arm = torch.randint(self.arms, best.shape, generator=self.generator)
        epsilon = (self.decay ** (self.t + torch.arange(len(best)))).clamp_min(self.least)
        return torch.where(torch.rand(len(best), generator=self.generator) < epsilon, any_arm, best)

    def observe(self, context: Tensor, arm: Tensor, reward: Tensor) -> None:
        """Rewards of the arms played."""
        self.t += len(arm)
        self.network.observe(context, arm, reward)
