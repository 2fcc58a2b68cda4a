"""Algorithm 1 on many targets at once: how the stacked copies of a :class:`TrainingTask` are trained by gradient descent."""

import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._bookmark import NOWHERE, Bookmark
from ntkgp._checks import check_count, check_positive
from ntkgp._progress import progress_bar
from ntkgp._types import NumericalWarning
from ntkgp.training_task import TrainedWeights, TrainingTask, squares


@dataclass(frozen=True)
class TrainingStep:
    """Where training stands after a step."""

    count: int
    note: Mapping[str, str | int]  # what a progress bar shows beside the count
    weights: Callable[[], TrainedWeights]  # a copy of the weights as they are now; to be called before the next step


Steps = Generator[TrainingStep, None, TrainedWeights]  # a training that goes on when asked to, and ends with its result


class Trainer(ABC):
    """A way to minimise the loss of every copy; an object that carries its own options."""

    dtype: torch.dtype

    @abstractmethod
    def steps(self, task: TrainingTask, bookmark: Bookmark = NOWHERE) -> Steps:
        """Train all copies together, a step each time the generator is asked: stop, look and go on as you like."""

    @abstractmethod
    def train(self, task: TrainingTask, progress: bool = False, bookmark: Bookmark = NOWHERE) -> TrainedWeights:
        """Train all copies together, from where the bookmark says, to the end."""


@dataclass(frozen=True)
class AcceleratedGD(Trainer):
    """Gradient descent with Nesterov momentum, restarts per copy, and step and metric from the SVD: nothing to tune.

    Gradient steps keep θ − θ0 in the row space of J, so the answers at new points converge when the fit does; Adam leaves that
    space. The loss is steep along the K singular vectors that are known (curvature s² + 1 in units of β) and at most as
    steep as the last of them elsewhere: dividing the gradient by the known curvature lets every copy take steps for the flat
    rest, √(λ₁/λ_K) times fewer of them. A copy stops when its certificate ‖∇‖/√(tᵀJΔ) (in units of the noise) is below
    `tol`: in the linear regime an upper bound on the relative error of the answer in its energy norm.

    Cost: three network passes over the N points a step and copy; memory 6·S·P numbers and the activations of S·N points.

    Args:
        signal: the size of every target while training (root mean square, relative to the prior standard deviation of the
            outputs); None takes 1e-4 in float64 and 1e-2 in float32, the smallest that rounding allows.
        tol: relative accuracy at which a copy has converged.
        max_steps: stop anyway; a warning says what was reached.
        metric: whether to divide by the known curvature; False is plain accelerated gradient descent.
        dtype: dtype to train in.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=32, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> trained = ntkgp.train_posterior_mean(net, x, x[:, 0].sin(), noise_var=0.1, trainer=ntkgp.AcceleratedGD())
        >>> exact = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1).predict(x)
        >>> bool((ntkgp.query_posterior_mean(trained, x) - exact.mean).norm() < 0.01 * exact.mean.norm())
        True
    """

    signal: float | None = None
    tol: float = 5e-3
    max_steps: int = 20_000
    metric: bool = True
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        check_positive("AcceleratedGD", signal=self.signal, tol=self.tol)
        check_count(self.max_steps, "max_steps", 1)

    def train(self, task: TrainingTask, progress: bool = False, bookmark: Bookmark = NOWHERE) -> TrainedWeights:
        """Train all copies together, from where the bookmark says, to the end."""
        return _to_the_end(self.steps(task, bookmark), len(task.targets), self.max_steps, progress)

    def steps(self, task: TrainingTask, bookmark: Bookmark = NOWHERE) -> Steps:
        """Train all copies together, a step at a time; copies that have converged leave the batch."""
        start = time.perf_counter()
        signal = self.signal if self.signal is not None else (1e-4 if self.dtype == torch.float64 else 1e-2)
        size = task.targets.square().mean(dim=(1, 2)).sqrt()
        scale = torch.where(size > 0, signal * task.amplitude / size.clamp_min(torch.finfo(size.dtype).tiny), 1.0)
        task = task.scaled(scale)
        S, final = len(task.targets), task.initial(scale)
        steps, accuracy, record = [0] * S, [math.inf] * S, _Record(S)
        active = torch.arange(S, device=final.device)
        point, ahead = final.clone(), final.clone()  # where the copies are, and where momentum looks
        # Curvatures in units of 2β. A Ritz value is a lower bound; its residual says how far the true one can be above it.
        curvature = (task.metric.s + task.metric.residuals).square() + 1
        steepest = curvature[-1] if self.metric else curvature[0]
        relief = (1 - steepest / curvature) if self.metric else torch.zeros_like(curvature)
        step = task.targets.new_full((S,), 0.5 / (task.beta * float(steepest)))
        momentum, last = torch.ones_like(step), torch.full_like(step, math.inf)
        anchor_loss = task.fit_error(torch.zeros_like(task.targets))
        before, note = 0, dict[str, str | int]()
        if (kept := bookmark.load()) is not None:
            before, active, final = int(kept["count"]), kept["active"], kept["final"]
            steps, accuracy, record.losses = kept["steps"].tolist(), kept["accuracy"].tolist(), kept["losses"].tolist()
            point, ahead, step, momentum, last = (kept[name] for name in ("point", "ahead", "step", "momentum", "last"))
            staying = torch.zeros(S, dtype=torch.bool, device=final.device).index_fill(0, active, True)
            anchor_loss, task = anchor_loss[staying], task.subset(staying)
        count = before

        def state() -> dict[str, Tensor]:
            return {"count": torch.tensor(count), "active": active, "final": final, "losses": record.tensor(), "point": point,
                    "ahead": ahead, "step": step, "momentum": momentum, "last": last, "steps": torch.tensor(steps),
                    "accuracy": torch.tensor(accuracy, dtype=torch.float64)}  # fmt: skip

        def weights() -> TrainedWeights:
            deltas = final.clone()
            deltas[active] = point
            taken, converged = [n or count for n in steps], [value <= self.tol for value in accuracy]
            return TrainedWeights(deltas, scale, taken, converged, list(accuracy), list(record.losses),
                                  time.perf_counter() - start)  # fmt: skip

        for count in range(before + 1, self.max_steps + 1):
            loss, gradient, certificate = _evaluate(task, ahead)
            gradient.addmm_((gradient @ task.metric.v) * relief, task.metric.v.T, alpha=-1)
            # Momentum starts over when the loss rises. A loss above that of θ0 means the step was too long for a network
            # far from linear (large signals): back to θ0 with half the step.
            lost = ~(loss <= 1.01 * anchor_loss) & (anchor_loss > 0)
            restart = (loss > last) | lost
            longer = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
            factor = torch.where(restart, 0.0, (momentum - 1) / longer).unsqueeze(1)
            momentum, last = torch.where(restart, 1.0, longer), torch.where(lost, math.inf, loss)
            step = torch.where(lost, step / 2, step)
            # In place, three arrays in turn: point ← new, ahead ← new + factor (new − point).
            ahead.addcmul_(step.unsqueeze(1), gradient, value=-1)
            if bool(lost.any()):
                ahead[lost], point[lost] = 0.0, 0.0
            torch.sub(ahead, point, out=gradient)
            point, ahead = ahead, point.copy_(ahead).addcmul_(factor, gradient)
            record.add(count, active, loss)
            done = (certificate <= self.tol) & ~lost
            if count % 10 == 0 or count == self.max_steps:
                note = {"error": f"{float(certificate.max()):.1e}"}
                leaving = done if count < self.max_steps else torch.ones_like(done)
                for k, value in zip(active[leaving].tolist(), certificate[leaving].tolist(), strict=True):
                    steps[k], accuracy[k] = count, value
                final[active[leaving]] = point[leaving]
                stay = ~leaving
                if not bool(stay.any()):
                    break
                if bool(leaving.any()):
                    active, step, momentum, last = active[stay], step[stay], momentum[stay], last[stay]
                    anchor_loss, task, point, ahead = anchor_loss[stay], task.subset(stay), point[stay], ahead[stay]
            paused = time.perf_counter()
            yield TrainingStep(count, note, weights)
            start += time.perf_counter() - paused
            bookmark.save(state)
        converged = [value <= self.tol for value in accuracy]
        if not all(converged):
            warnings.warn(
                f"{converged.count(False)} of {S} networks stopped after {self.max_steps} steps at a relative accuracy of "
                f"{max(accuracy):.1e}, not {self.tol:.1e}; raise max_steps, loosen tol, or use a smaller signal",
                NumericalWarning,
                stacklevel=4,
            )
        return weights()


@dataclass(frozen=True)
class Adam(Trainer):
    """Adam as in the paper's experiment: full batch, stopped when a copy's loss has not improved for `patience` epochs.

    Cost: three network passes over the N points a step and copy; memory 7·S·P numbers and the activations of S·N points.

    Args:
        lr: learning rate of the mean predictor.
        covariance_lr: learning rate of the covariance predictors; None takes half of `lr`, as the paper does.
        patience: epochs without improvement after which a copy stops; its best weights are kept.
        signal: the factor ε on the targets while training; the paper's is 1.
        max_steps: stop anyway.
        dtype: dtype to train in.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=32, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> trainer = ntkgp.Adam(lr=1e-2, patience=20)
        >>> trained = ntkgp.train_posterior_mean(net, x, x[:, 0].sin(), noise_var=0.1, trainer=trainer)
        >>> ntkgp.query_posterior_mean(trained, x).shape
        torch.Size([6])
    """

    lr: float = 1e-4
    covariance_lr: float | None = None
    patience: int = 500
    signal: float = 1.0
    max_steps: int = 100_000
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        rates = {"lr": self.lr, "covariance_lr": self.covariance_lr, "signal": self.signal}
        check_positive("Adam", **rates)
        check_count(self.patience, "patience", 1)
        check_count(self.max_steps, "max_steps", 1)

    def train(self, task: TrainingTask, progress: bool = False, bookmark: Bookmark = NOWHERE) -> TrainedWeights:
        """Train all copies together, from where the bookmark says, to the end."""
        return _to_the_end(self.steps(task, bookmark), len(task.targets), self.max_steps, progress)

    def steps(self, task: TrainingTask, bookmark: Bookmark = NOWHERE) -> Steps:
        """Train all copies together, a step at a time, each with its own patience."""
        start = time.perf_counter()
        scale = task.targets.new_full((len(task.targets),), self.signal)
        task = task.scaled(scale)
        S, final, record = len(task.targets), task.initial(scale), _Record(len(task.targets))
        mean = torch.tensor([role == "mean" for role in task.roles], device=task.x.device)
        rates = {True: self.lr, False: self.lr / 2 if self.covariance_lr is None else self.covariance_lr}
        # torch's Adam has one rate per parameter group, so the two kinds of copies are two stacks.
        stacks = {kind: final[mean == kind].requires_grad_() for kind in rates}
        optimiser = torch.optim.Adam([{"params": [stacks[kind]], "lr": rate} for kind, rate in rates.items()], fused=True)
        order = torch.argsort(torch.cat([mean.nonzero().flatten(), (~mean).nonzero().flatten()]))
        best, since = task.targets.new_full((S,), math.inf), torch.zeros(S, dtype=torch.long, device=task.x.device)
        steps, before, note = torch.zeros_like(since), 0, dict[str, str | int]()
        if (kept := bookmark.load()) is not None:
            before, record.losses = int(kept["count"]), kept["losses"].tolist()
            final, best, since, steps = (kept[name] for name in ("final", "best", "since", "steps"))
            with torch.no_grad():
                for kind, stack in stacks.items():
                    stack.copy_(kept[f"{kind}.stack"])
                    optimiser.state[stack] = {name: kept[f"{kind}.{name}"] for name in ("step", "exp_avg", "exp_avg_sq")}
        count = before

        def state() -> dict[str, Tensor]:
            moments = {f"{kind}.{name}": value for kind, stack in stacks.items()
                       for name, value in optimiser.state[stack].items()}  # fmt: skip
            return moments | {f"{kind}.stack": stack.detach() for kind, stack in stacks.items()} | {
                "count": torch.tensor(count), "losses": record.tensor(), "final": final.detach(), "best": best, "since": since,
                "steps": steps}  # fmt: skip

        def weights() -> TrainedWeights:
            stopped = since >= self.patience
            return TrainedWeights(final.clone(), scale, steps.tolist(), stopped.tolist(), best.tolist(), list(record.losses),
                                  time.perf_counter() - start)  # fmt: skip

        for count in range(before + 1, self.max_steps + 1):
            optimiser.zero_grad()
            deltas = torch.cat([stacks[True], stacks[False]])[order]
            loss = task.loss(deltas)
            loss.sum().backward()
            with torch.no_grad():
                running = since < self.patience
                better = running & (loss < best)
                best, since = torch.where(better, loss, best), torch.where(better, 0, since + 1)
                steps += running
                final[better] = deltas[better]
            record.add(count, torch.arange(S), loss.detach())
            if count % 100 == 0:
                note = {"loss": f"{float(best.max()):.2e}", "running": int(running.sum())}
            paused = time.perf_counter()
            yield TrainingStep(count, note, weights)
            start += time.perf_counter() - paused
            if not bool((since < self.patience).any()):
                break
            optimiser.step()
            bookmark.save(state)
        stopped = since >= self.patience
        if not bool(stopped.all()):
            warnings.warn(
                f"{int((~stopped).sum())} of {S} networks stopped after {self.max_steps} steps, improving; raise max_steps",
                NumericalWarning,
                stacklevel=4,
            )
        return weights()


def _to_the_end(steps: Steps, copies: int, most: int, progress: bool) -> TrainedWeights:
    """All steps of a training, under a progress bar."""
    with progress_bar(progress, total=most, desc=f"training {copies} networks", leave=False, mininterval=0.5) as bar:
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                return end.value
            bar.update(step.count - bar.n)
            bar.set_postfix(dict(step.note), refresh=False)


@dataclass
class _Record:
    """Losses of all copies at every 10th step; copies that have left keep their last one."""

    copies: int
    losses: list[list[float]] = field(default_factory=list)

    def add(self, count: int, active: Tensor, loss: Tensor) -> None:
        if count % 10 == 1:
            row = list(self.losses[-1]) if self.losses else [math.nan] * self.copies
            for k, value in zip(active.tolist(), loss.tolist(), strict=True):
                row[k] = value
            self.losses.append(row)

    def tensor(self) -> Float[Tensor, "L S"]:
        """For a bookmark."""
        return torch.tensor(self.losses, dtype=torch.float64).reshape(-1, self.copies)


def joined(parts: list[TrainedWeights]) -> TrainedWeights:
    """Copies that were trained apart, as if together; those that stopped earlier keep their last loss."""
    rows = max(len(part.losses) for part in parts)
    losses = [part.losses + [part.losses[-1]] * (rows - len(part.losses)) if part.losses else [] for part in parts]
    return TrainedWeights(
        deltas=torch.cat([part.deltas for part in parts]),
        scale=torch.cat([part.scale for part in parts]),
        steps=[n for part in parts for n in part.steps],
        converged=[c for part in parts for c in part.converged],
        accuracy=[a for part in parts for a in part.accuracy],
        losses=[[value for each in losses if each for value in each[k]] for k in range(rows)],
        seconds=max(part.seconds for part in parts),
    )


def _evaluate(task: TrainingTask, deltas: Float[Tensor, "S P"]) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and gradient of every copy, and the certificate: how far it can be from its optimum, relative to its size."""
    leaf = deltas.detach().requires_grad_()
    change = task.copies.change(leaf, task.x)
    errors = task.fit_error(change)
    (gradient,) = torch.autograd.grad(errors.sum(), leaf)
    with torch.no_grad():
        loss = errors + task.beta * squares(deltas)
        gradient.add_(deltas, alpha=2 * task.beta)
        energy = (task.weights * task.targets * change).sum(dim=(1, 2)).clamp_min(0)
        # A target that the network cannot follow (zero, or outside the range of J) has an answer of zero: accuracy is then
        # relative to the target itself.
        floor = 1e-6 * (task.weights * task.targets.square()).sum(dim=(1, 2))
        excess = squares(gradient) * len(task.x) / (4 * task.beta)
        certificate = torch.where(floor > 0, (excess / torch.maximum(energy, floor)).sqrt(), 0.0)
    return loss, gradient, certificate.nan_to_num(nan=math.inf)
