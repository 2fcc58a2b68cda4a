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

    With gradient steps θ − θ0 stays in the row space of J, so the answers at new points converge when the fit does; with Adam
    it leaves the row space. The loss is steep along the K singular vectors of the head (curvature s² + 1 in units of β), and
    in the rest at most as steep as along the last of them. Dividing the gradient by the known curvature allows steps as long
    as the flat rest permits, and so √(λ₁/λ_K) times fewer steps. A copy stops when its certificate ‖∇‖/√(tᵀJΔ) (in units of
    the noise) is below `tol`. In the linear regime the certificate bounds the relative error of the answer in its energy norm.

    Cost per step and copy: three network passes over the N points; memory 6·S·P numbers and the activations of S·N points.

    Args:
        signal: size of every target during training (root mean square, relative to the prior standard deviation of the
            outputs); None takes 1e-4 in float64 and 1e-2 in float32, the smallest sizes that rounding allows.
        tol: relative accuracy at which a copy counts as converged.
        max_steps: largest number of steps; if it is reached, a warning reports the accuracy.
        metric: whether to divide the gradient by the known curvature; False is plain accelerated gradient descent.
        dtype: dtype of the training.

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
        """Train all copies together to the end; resume from the bookmark if it has a saved state."""
        return run_to_end(self.steps(task, bookmark), len(task.targets), self.max_steps, progress)

    def steps(self, task: TrainingTask, bookmark: Bookmark = NOWHERE) -> Steps:
        """Train all copies together, one step per iteration; copies that have converged leave the batch."""
        start = time.perf_counter()
        signal = self.signal if self.signal is not None else (1e-4 if self.dtype == torch.float64 else 1e-2)
        size = task.targets.square().mean(dim=(1, 2)).sqrt()
        scale = torch.where(size > 0, signal * task.amplitude / size.clamp_min(torch.finfo(size.dtype).tiny), 1.0)
        task = task.scaled(scale)
        S, final = len(task.targets), task.initial(scale)
        steps, accuracy, record = [0] * S, [math.inf] * S, LossRecord(S)
        active = torch.arange(S, device=final.device)
        point, ahead = final.clone(), final.clone()  # current weights, and weights extrapolated by momentum
        # Curvatures in units of 2β. A Ritz value is a lower bound; its residual bounds how far the true value can be above it.
        curvature = (task.metric.s + task.metric.residuals).square() + 1
        steepest = curvature[-1] if self.metric else curvature[0]
        relief = (1 - steepest / curvature) if self.metric else torch.zeros_like(curvature)
        step = task.targets.new_full((S,), 0.5 / (task.beta * float(steepest)))
        momentum, last = torch.ones_like(step), torch.full_like(step, math.inf)
        anchor_loss = task.fit_error(torch.zeros_like(task.targets))
        before, note = 0, dict[str, str | int]()
        if (saved := bookmark.load()) is not None:
            before, active, final = int(saved["count"]), saved["active"], saved["final"]
            steps, accuracy, record.losses = saved["steps"].tolist(), saved["accuracy"].tolist(), saved["losses"].tolist()
            point, ahead, step, momentum, last = (saved[name] for name in ("point", "ahead", "step", "momentum", "last"))
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
            # Momentum restarts when the loss rises. A loss above the loss at θ0 means that the step was too long for a network
            # far from linear (large signals): go back to θ0 with half the step.
            lost = ~(loss <= 1.01 * anchor_loss) & (anchor_loss > 0)
            restart = (loss > last) | lost
            longer = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
            factor = torch.where(restart, 0.0, (momentum - 1) / longer).unsqueeze(1)
            momentum, last = torch.where(restart, 1.0, longer), torch.where(lost, math.inf, loss)
            step = torch.where(lost, step / 2, step)
            # In place, with three buffers: point ← new, ahead ← new + factor (new − point).
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
                f"{max(accuracy):.1e}, tol is {self.tol:.1e}; raise max_steps or tol, or use a smaller signal",
                NumericalWarning,
                stacklevel=4,
            )
        return weights()


def _evaluate(task: TrainingTask, deltas: Float[Tensor, "S P"]) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, gradient and certificate of every copy; the certificate bounds its relative distance to the optimum."""
    leaf = deltas.detach().requires_grad_()
    change = task.copies.change(leaf, task.x)
    errors = task.fit_error(change)
    (gradient,) = torch.autograd.grad(errors.sum(), leaf)
    with torch.no_grad():
        loss = errors + task.beta * squares(deltas)
        gradient.add_(deltas, alpha=2 * task.beta)
        energy = (task.weights * task.targets * change).sum(dim=(1, 2)).clamp_min(0)
        # If the network cannot fit a target (zero, or outside the range of J), its answer is zero; measure accuracy relative
        # to the target then.
        floor = 1e-6 * (task.weights * task.targets.square()).sum(dim=(1, 2))
        excess = squares(gradient) * len(task.x) / (4 * task.beta)
        certificate = torch.where(floor > 0, (excess / torch.maximum(energy, floor)).sqrt(), 0.0)
    return loss, gradient, certificate.nan_to_num(nan=math.inf)
