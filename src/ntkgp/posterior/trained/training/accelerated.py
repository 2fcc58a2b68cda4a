"""Accelerated gradient descent with step and metric from the SVD."""

import math
import time
import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.check_options import check_count, check_positive
from ntkgp._system.errors import NumericalWarning
from ntkgp._system.resume import NOWHERE, Bookmark
from ntkgp.posterior.trained.training.task import TrainedWeights, TrainingTask, squares
from ntkgp.posterior.trained.training.trainer import LossRecord, Steps, Trainer, TrainingStep, run_to_end


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
        return run_to_end(self.steps(task, bookmark), len(task.targets), self.max_steps, progress)

    def steps(self, task: TrainingTask, bookmark: Bookmark = NOWHERE) -> Steps:
        """Train all copies together, a step at a time; copies that have converged leave the batch."""
        start = time.perf_counter()
        signal = self.signal if self.signal is not None else (1e-4 if self.dtype == torch.float64 else 1e-2)
        size = task.targets.square().mean(dim=(1, 2)).sqrt()
        scale = torch.where(size > 0, signal * task.amplitude / size.clamp_min(torch.finfo(size.dtype).tiny), 1.0)
        task = task.scaled(scale)
        S, final = len(task.targets), task.initial(scale)
        steps, accuracy, record = [0] * S, [math.inf] * S, LossRecord(S)
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
