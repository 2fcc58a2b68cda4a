"""Train a copy briefly before taking its tangent, to learn features; held-out points choose the number of steps."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from ntkgp._system.check_data import check_inputs, check_targets
from ntkgp._system.check_module import check_module
from ntkgp._system.check_options import check_count, check_generator, check_positive
from ntkgp._system.progress import progress_bar
from ntkgp._system.settings import in_own_settings
from ntkgp.tangent.opening import open_network
from ntkgp.tuning.loops import AdamWLoop, AdamWOptions, OwnLoop, TrainingCopies, TrainingData, TrainingLoop
from ntkgp.tuning.result import WarmUp
from ntkgp.tuning.tune import tune

Score = Callable[[WarmUp, Tensor, Tensor, Tensor, Tensor], float]


@in_own_settings(gradients=True)
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
) -> WarmUp:
    """Train a copy of the module briefly, to take the tangent there; held-out points choose the number of steps.

    A few hundred steps give the kernel features that fit the data. Many more steps over-fit, and the marginal likelihood of the
    same data cannot detect it. So the network is first trained on a part of the data. For each candidate number of steps the
    Gaussian process of its tangent (noise and prior variances tuned) predicts the held-out part. Then a new copy is trained on
    all data. Targets are standardised for training: it should give features, not predictions.

    Memory: the copies, their gradients and two moments; for the choice also (5/6)²·points²·layers numbers.

    Args:
        module: any ``nn.Module``; or several of one architecture with different initial weights, which are trained together
            and returned as :class:`SumOfNetworks`.
        x: training points, (N, ...).
        y: training targets, (N,) or (N, C).
        steps: candidate numbers of steps; a single candidate is used directly; 0 means no training.
        train: a function (module, x, y, steps) that trains the module in place for `steps` more steps, however you define a
            step; None for AdamW on the squared error.
        score: a function (warm, x, y, x_held, y_held) → number, the larger the better, that rates ``warm.module``, trained on
            (x, y) for ``warm.steps`` steps, on the held-out points; None for the log density under its Gaussian process.
        share: part of the data that each network is trained on; None for all data with one network and for half with several,
            so that the marginal likelihood of their sum includes points that a network has not seen.
        holdout: part of the data held out for the choice.
        lr: learning rate of AdamW.
        weight_decay: weight decay of AdamW.
        batch_size: points in a minibatch.
        points: largest number of points used for the choice.
        generator: random numbers for minibatches and parts; torch's global generator if None.
        progress: show a progress bar.

    Example:
        >>> import torch, ntkgp
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.linspace(-1, 1, 60).unsqueeze(1)
        >>> y = torch.sin(6 * x[:, 0])
        >>> net = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.SiLU(), torch.nn.Linear(32, 1))
        >>> warm = ntkgp.warm_up(net, x, y, steps=(0, 100), generator=g)
        >>> sorted(warm.scores)
        [0, 100]
        >>> posterior = ntkgp.tune(warm.module, x, y, input_scales=False, steps=40).fit(x, y)
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

    def loop(on: Tensor) -> TrainingCopies:
        parts = [on[_permutation(len(on), generator)[: max(1, round(share * len(on)))].to(on.device)] for _ in modules]
        data = TrainingData(x.detach(), targets.detach(), parts)
        if train is not None:
            return OwnLoop(modules, data, train)
        return AdamWLoop(modules, data, AdamWOptions(lr, weight_decay, batch_size), generator)

    order = _permutation(len(x), generator).to(x.device)
    held = order[: max(1, round(holdout * len(x)))]
    used = order[len(held) :]
    scores: dict[int, float] = {}
    chosen = candidates[-1]
    with progress_bar(progress, total=candidates[-1] * (2 if len(candidates) > 1 else 1), desc="warming up") as bar:
        if len(candidates) > 1:
            if len(used) < 2:
                raise ValueError(
                    f"a choice among {len(candidates)} numbers of steps needs at least 3 points, got {len(x)}; pass one number"
                )
            trial = loop(used)
            for before, after in pairwise([0, *candidates]):
                trial.advance(after - before, bar)
                seen, unseen = used[:points], held[:points]
                candidate = WarmUp(trial.result(), after, {})
                scores[after] = (score or _held_out_density)(candidate, x[seen], targets[seen], x[unseen], targets[unseen])
            chosen = max(scores, key=lambda count: scores[count])
        final = loop(order)
        final.advance(chosen, bar)
    return WarmUp(final.result(), chosen, scores)


def _held_out_density(warm: WarmUp, x: Tensor, y: Tensor, x_held: Tensor, y_held: Tensor) -> float:
    """Return the mean log predictive density of held-out points under the tuned Gaussian process of the module's tangent."""
    tuned = tune(warm.module, x, y, input_scales=False, starts=1, hyper_prior=1.0, points=y.numel())
    return float(tuned.fit(x, y).predict(x_held).log_density(y_held).mean())


def _permutation(count: int, generator: torch.Generator | None) -> Tensor:
    return torch.randperm(count, generator=generator, device="cpu" if generator is None else generator.device)
