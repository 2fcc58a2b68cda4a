"""Adam as in the paper's experiment."""

import math
import time
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from ntkgp._system.check_options import check_count, check_positive
from ntkgp._system.errors import NumericalWarning
from ntkgp._system.resume import NOWHERE, Bookmark
from ntkgp.posterior.trained.training.task import TrainedWeights, TrainingTask
from ntkgp.posterior.trained.training.trainer import LossRecord, Steps, Trainer, TrainingStep, run_to_end


@dataclass(frozen=True)
class Adam(Trainer):
    """Adam as in the paper's experiment: full batch; a copy stops when its loss has not improved for `patience` epochs.

    Cost per step and copy: three network passes over the N points; memory 7·S·P numbers and the activations of S·N points.

    Args:
        lr: learning rate of the mean predictor.
        covariance_lr: learning rate of the covariance predictors; None takes half of `lr`, as in the paper.
        patience: epochs without improvement after which a copy stops; its best weights are the result.
        signal: factor ε on the targets during training; 1 in the paper.
        max_steps: largest number of steps.
        dtype: dtype of the training.

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
        """Train all copies together to the end; resume from the bookmark if it has a saved state."""
        return run_to_end(self.steps(task, bookmark), len(task.targets), self.max_steps, progress)

    def steps(self, task: TrainingTask, bookmark: Bookmark = NOWHERE) -> Steps:
        """Train all copies together, one step per iteration; patience counts separately per copy."""
        start = time.perf_counter()
        scale = task.targets.new_full((len(task.targets),), self.signal)
        task = task.scaled(scale)
        S, final, record = len(task.targets), task.initial(scale), LossRecord(len(task.targets))
        mean = torch.tensor([role == "mean" for role in task.roles], device=task.x.device)
        rates = {True: self.lr, False: self.lr / 2 if self.covariance_lr is None else self.covariance_lr}
        # torch's Adam has one learning rate per parameter group: one stack for mean copies, one for covariance copies.
        stacks = {kind: final[mean == kind].requires_grad_() for kind in rates}
        optimiser = torch.optim.Adam([{"params": [stacks[kind]], "lr": rate} for kind, rate in rates.items()], fused=True)
        order = torch.argsort(torch.cat([mean.nonzero().flatten(), (~mean).nonzero().flatten()]))
        best, since = task.targets.new_full((S,), math.inf), torch.zeros(S, dtype=torch.long, device=task.x.device)
        steps, before, note = torch.zeros_like(since), 0, dict[str, str | int]()
        if (saved := bookmark.load()) is not None:
            before, record.losses = int(saved["count"]), saved["losses"].tolist()
            final, best, since, steps = (saved[name] for name in ("final", "best", "since", "steps"))
            with torch.no_grad():
                for kind, stack in stacks.items():
                    stack.copy_(saved[f"{kind}.stack"])
                    optimiser.state[stack] = {name: saved[f"{kind}.{name}"] for name in ("step", "exp_avg", "exp_avg_sq")}
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
                f"{int((~stopped).sum())} of {S} networks stopped after {self.max_steps} steps but were still improving; raise "
                "max_steps",
                NumericalWarning,
                stacklevel=4,
            )
        return weights()
