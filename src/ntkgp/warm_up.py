"""Features before the tangent: brief ordinary training of a copy, its length chosen on held-out training data."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from ntkgp._checks import check_count, check_generator, check_inputs, check_module, check_positive, check_targets
from ntkgp._progress import Bar, progress_bar
from ntkgp.networks import SumOfNetworks
from ntkgp.pose import open_network
from ntkgp.tune import tune

TrainingLoop = Callable[[nn.Module, Tensor, Tensor, int], None]
Score = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor], float]


@dataclass(frozen=True)
class WarmUp:
    """How long a network was trained, and why; on the module :func:`warm_up` returns, as ``module.warmed_up``.

    Attributes:
        steps: chosen number of steps.
        scores: for each candidate the mean log predictive density of held-out points under the Gaussian process of the network
            trained that long; empty when there was one candidate.

    Example:
        >>> WarmUp(steps=100, scores={0: -1.2, 100: -0.3}).steps
        100
    """

    steps: int
    scores: dict[int, float]


def warm_up(
    module: nn.Module | Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    *,
    steps: Sequence[int] = (0, 30, 100, 300, 1000),
    train: TrainingLoop | None = None,
    score: Score | None = None,
    share: float | None = None,
    holdout: float = 1 / 6,
    lr: float = 3e-3,
    weight_decay: float = 1e-2,
    batch_size: int = 32,
    points: int = 1000,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> nn.Module:
    """A copy of the module, trained briefly, to take the tangent at; how briefly is chosen on held-out points.

    A few hundred steps give the kernel features that fit the data; many more over-fit it, which the marginal likelihood of
    the same data cannot see. So the network is first trained on a part, and for each candidate number of steps the Gaussian
    process of its tangent (noise and prior variances tuned) predicts the rest; then it is trained anew on all of it. Targets
    are standardised for training: the features are wanted, not the network's own prediction.

    Memory: the copies, their gradients and two moments; the choice, (5/6)²·points²·layers numbers.

    Args:
        module: any ``nn.Module``; or several of one architecture (other initial weights), which are trained side by side and
            returned as :class:`SumOfNetworks`.
        x: training points, (N, ...).
        y: training targets, (N,) or (N, C).
        steps: candidates; one alone is taken without a choice, 0 is no training.
        train: instead of AdamW on the squared error: a function (module, x, y, steps) that trains the module in place for that
            many more steps, whatever a step is.
        score: instead of the density under the module's own Gaussian process: a function (module, x, y, x_held, y_held) →
            number, the larger the better, that judges a module trained on (x, y) by held-out points.
        share: part of the data each network is trained on; half when there are several, which keeps the marginal likelihood of
            their sum honest, else all.
        holdout: part of the data held out for the choice.
        lr: learning rate of AdamW.
        weight_decay: weight decay of AdamW.
        batch_size: points in a minibatch.
        points: at most so many points are used for the choice.
        generator: source of minibatches and of the parts; the global one when None.
        progress: show a progress bar.

    Example:
        >>> import torch, ntkgp
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.linspace(-1, 1, 60).unsqueeze(1)
        >>> y = torch.sin(6 * x[:, 0])
        >>> net = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.SiLU(), torch.nn.Linear(32, 1))
        >>> warm = ntkgp.warm_up(net, x, y, steps=(0, 100), generator=g)
        >>> sorted(warm.warmed_up.scores)
        [0, 100]
        >>> posterior = ntkgp.tune(warm, x, y, input_scales=False, steps=40).fit(x, y)
    """
    modules = list(module) if isinstance(module, Sequence) else [module]
    for one in modules:
        check_module(one)
    check_inputs(x, modules[0])
    _, outputs = open_network(modules[0], x)
    check_targets(y, x, outputs)
    candidates = sorted(set(steps))
    if not candidates:
        raise ValueError("steps must hold at least one candidate, got none")
    for candidate in candidates:
        check_count(candidate, "steps", 0)
    check_count(batch_size, "batch_size", 1)
    check_count(points, "points", 1)
    check_generator(generator)
    if weight_decay != 0:
        check_positive("warm_up", weight_decay=weight_decay)
    share = (1.0 if len(modules) == 1 else 0.5) if share is None else share
    check_positive("warm_up", lr=lr, share=share, holdout=holdout)
    if share > 1 or holdout >= 1:
        raise ValueError(f"share must be at most 1 and holdout below 1, got {share} and {holdout}")
    scale = y.std(dim=0, correction=0)
    targets = (y - y.mean(dim=0)) / torch.where(scale > 0, scale, torch.ones_like(scale))

    def loop(on: Tensor) -> "_Loop":
        parts = [on[_permutation(len(on), generator)[: max(1, round(share * len(on)))].to(on.device)] for _ in modules]
        if train is not None:
            return _OwnLoop(modules, x, targets, parts, train)
        return _AdamW(modules, x, targets, parts, lr, weight_decay, batch_size, generator)

    order = _permutation(len(x), generator).to(x.device)
    held = order[: max(1, round(holdout * len(x)))]
    kept = order[len(held) :]
    scores: dict[int, float] = {}
    chosen = candidates[-1]
    with progress_bar(progress, total=candidates[-1] * (2 if len(candidates) > 1 else 1), desc="warming up") as bar:
        if len(candidates) > 1:
            if len(kept) < 2:
                raise ValueError(f"choosing among {len(candidates)} numbers of steps needs 3 points or more, got {len(x)}")
            trial = loop(kept)
            for before, after in pairwise([0, *candidates]):
                trial.advance(after - before, bar)
                seen, unseen = kept[:points], held[:points]
                candidate = _marked(trial.result(), after, {})
                scores[after] = (score or _held_out_density)(candidate, x[seen], targets[seen], x[unseen], targets[unseen])
            chosen = max(scores, key=lambda count: scores[count])
        final = loop(order)
        final.advance(chosen, bar)
    return _marked(final.result(), chosen, scores)


def _marked(module: nn.Module, steps: int, scores: dict[int, float]) -> nn.Module:
    module.warmed_up = WarmUp(steps, scores)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    return module


def _held_out_density(module: nn.Module, x: Tensor, y: Tensor, x_held: Tensor, y_held: Tensor) -> float:
    """Mean log predictive density of held-out points under the tuned Gaussian process of the module's tangent."""
    tuned = tune(module, x, y, input_scales=False, starts=1, hyper_prior=1.0, points=y.numel())
    return float(tuned.fit(x, y).predict(x_held).log_density(y_held).mean())


class _Loop:
    """Copies being trained, some steps at a time; each sees its own part of the data."""

    def __init__(self, modules: list[nn.Module], x: Tensor, y: Tensor, parts: list[Tensor]):
        self.copies = [copy.deepcopy(module) for module in modules]
        self.x, self.y, self.parts = x.detach(), y.detach(), parts

    def advance(self, steps: int, bar: Bar) -> None:
        """Train on."""
        raise NotImplementedError

    def result(self) -> nn.Module:
        """A copy as trained so far, in the mode the module came in."""
        copies = [copy.deepcopy(one) for one in self.copies]
        return copies[0] if len(copies) == 1 else SumOfNetworks(*copies).train(copies[0].training)


class _OwnLoop(_Loop):
    def __init__(self, modules: list[nn.Module], x: Tensor, y: Tensor, parts: list[Tensor], train: TrainingLoop):
        super().__init__(modules, x, y, parts)
        self.train = train

    def advance(self, steps: int, bar: Bar) -> None:
        for one, part in zip(self.copies, self.parts, strict=True):
            if steps:
                self.train(one, self.x[part], self.y[part], steps)
        bar.update(steps)


class _AdamW(_Loop):
    """AdamW on the mean squared error; copies of one architecture as one stack, so that M of them cost little more than one."""

    def __init__(self, modules: list[nn.Module], x: Tensor, y: Tensor, parts: list[Tensor], lr: float, decay: float,
                 batch: int, generator: torch.Generator | None):  # fmt: skip
        super().__init__(modules, x, y, parts)
        self.batch, self.generator = min(batch, len(parts[0])), generator
        # Buffers that training changes, or random layers, would be mixed up between stacked copies.
        plain = all(not any(True for _ in one.buffers()) and not any(isinstance(p, nn.Dropout) for p in one.modules())
                    for one in self.copies)  # fmt: skip
        same = len({tuple((n, p.shape) for n, p in one.named_parameters()) for one in self.copies}) == 1
        self.stacked: dict[str, Tensor] | None = None
        if len(modules) > 1 and plain and same:
            self.stacked = stack_module_state(self.copies)[0]  # pyright: ignore[reportArgumentType]
        tensors = list(self.stacked.values()) if self.stacked else [p for one in self.copies for p in one.parameters()]
        self.optimiser = torch.optim.AdamW([t for t in tensors if t.requires_grad], lr=lr, weight_decay=decay)

    def advance(self, steps: int, bar: Bar) -> None:
        modes = [[part.training for part in one.modules()] for one in self.copies]
        for one in self.copies:
            one.train()
        for _ in range(steps):
            rows = torch.stack([part[self._draw(len(part)).to(part.device)] for part in self.parts])
            self.optimiser.zero_grad()
            loss = self._loss(self.x[rows], self.y[rows])
            if not math.isfinite(float(loss.detach())):
                raise ValueError("training diverged; lower lr, or scale x to a standard deviation near 1")
            loss.backward()
            self.optimiser.step()
            bar.update()
        for one, mode in zip(self.copies, modes, strict=True):
            for part, training in zip(one.modules(), mode, strict=True):
                part.training = training

    def _draw(self, count: int) -> Tensor:
        device = "cpu" if self.generator is None else self.generator.device
        return torch.randint(count, (self.batch,), generator=self.generator, device=device)

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        if self.stacked is None:
            pairs = zip(self.copies, x, y, strict=True)
            return torch.stack([(one(a).reshape(b.shape) - b).square().mean() for one, a, b in pairs]).sum()
        out = vmap(lambda params, a: functional_call(self.copies[0], params, (a,)))(self.stacked, x)
        return (out.reshape(y.shape) - y).square().flatten(1).mean(dim=1).sum()

    def result(self) -> nn.Module:
        if self.stacked is not None:
            for k, one in enumerate(self.copies):
                with torch.no_grad():
                    for name, p in one.named_parameters():
                        p.copy_(self.stacked[name][k])
        return super().result()


def _permutation(count: int, generator: torch.Generator | None) -> Tensor:
    return torch.randperm(count, generator=generator, device="cpu" if generator is None else generator.device)
