"""Fit the table model to columns of numbers: standardise, tune, compute the posterior."""

import copy
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ntkgp._system.check_data import check_noise, check_spread
from ntkgp._system.locks import ForkLock
from ntkgp._system.threads import FEW_ROWS, one_thread
from ntkgp.apps.tables.model import TableModel
from ntkgp.apps.tables.noise import group_variances, noise_on_new_rows
from ntkgp.apps.tables.options import TableOptions
from ntkgp.apps.tables.scaling import Scaling
from ntkgp.distributed.group import Group
from ntkgp.networks.infinite.layers import is_infinite
from ntkgp.networks.sums import SumOfNetworks
from ntkgp.posterior.interface import Posterior
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.problem.gathering import rows_of_all
from ntkgp.tuning.recipe.table import tune_table
from ntkgp.tuning.result import Tuned
from ntkgp.tuning.tune import tune

# In tables with at least PILOT_ROWS + JUDGING_ROWS rows: size of a first fit, and number of other rows that estimate its noise.
PILOT_ROWS, JUDGING_ROWS = 50_000, 10_000
GROUP_ROUNDS = 2  # rounds that estimate the group noise for a fixed kernel and then tune the kernel for that noise


@dataclass(frozen=True)
class NoiseGiven:
    """Noise information given by the user: none; known variances, (1, C) or (N, C); or the group of each row.

    Variances are in squared units of the targets. The fit learns one variance per group.
    """

    known: Float[Tensor, "N C"] | None = None
    groups: Int[Tensor, "N"] | None = None
    group_count: int = 0


def fit_table(
    x: Float[Tensor, "N D"],
    y: Float[Tensor, "N *C"],
    options: TableOptions | None = None,
    noise: NoiseGiven | None = None,
    ranks: Group | None = None,
) -> TableModel:
    """Tune the recipe for tables, or a given network, and compute its posterior.

    Args:
        x: features, in the user's units.
        y: targets, (N,) or (N, C), in the user's units.
        options: options of the fit; None for the defaults.
        noise: noise information; None to learn one variance per target.
        ranks: group of processes, each with some of the rows. All tune hyper-parameters on the same rows: all rows, or a
            random subset of 60,000 of a larger table. The posterior uses all rows.
    """
    options, noise = options or TableOptions(), noise or NoiseGiven()
    x, y = x.contiguous(), y.contiguous()  # sums round by memory order: the same table must give the same model
    scaling = Scaling.of if ranks is None else partial(Scaling.of_all, group=ranks)
    scaling = scaling if options.standardize else Scaling.none
    inputs, targets = scaling(x), scaling(y)
    check_spread(targets.scale)
    generator = torch.Generator().manual_seed(options.seed)
    job = _Job(options, targets, generator, int(len(y) if ranks is None else ranks.total(len(y))), ranks)
    with one_thread(options.is_infinite(job.rows * job.outputs) and job.rows < FEW_ROWS):
        return job.run(inputs, x, y, noise)


@dataclass
class _Job:
    """One fit, from raw rows to the model."""

    options: TableOptions
    targets: Scaling
    generator: torch.Generator
    rows: int  # number of rows of all ranks together
    ranks: Group | None
    started: float = field(default_factory=time.perf_counter)
    judged: int = 0  # number of rows used to estimate the noise after a first fit

    @property
    def outputs(self) -> int:
        return max(1, self.targets.scale.numel())

    @property
    def large(self) -> bool:
        return self.options.is_large(self.rows * self.outputs)

    def run(self, inputs: Scaling, x: Tensor, y: Tensor, noise: NoiseGiven) -> TableModel:
        # Large networks are tuned in float32; every posterior computes in float64 all the same.
        place = {"device": self.options.device, "dtype": torch.float32 if self.large else torch.float64}
        square = self.targets.scale.square().cpu()
        known, groups = self._standardised_noise(noise, square, len(x))
        mine = (inputs.apply(x).to(**place), self.targets.apply(y).to(**place), known, groups)
        every = mine  # the rows used for tuning, the same on every rank
        if self.ranks is not None:
            seed = torch.Generator().manual_seed(self.options.seed)
            xs, ys, given, codes = rows_of_all(self.ranks, [*mine], PILOT_ROWS + JUDGING_ROWS, seed)
            every = (xs, ys, given, codes)
            mine = mine if self.large else every
        tuned, variances = self._tuned(*every, noise)
        if noise.known is not None:
            tuned = replace(tuned, noise_var=known[:1] if len(noise.known) == 1 else mine[2].to(mine[0].device))
            variances = noise.known.double() if len(noise.known) == 1 else None
        elif noise.groups is not None:
            assert variances is not None
            tuned = replace(tuned, noise_var=variances[mine[3].to(mine[0].device)])
            common = variances[every[3].to(mine[0].device)].mean(dim=0, keepdim=True)
            variances = torch.cat([variances, common]).cpu() * square
        else:
            variances = torch.as_tensor(tuned.noise_var, dtype=torch.float64).reshape(1, -1).cpu() * square
        posterior = self._posterior(tuned, *mine[:2], together=self.large)
        fitted = self._summary(tuned, posterior, x.shape[1], place["dtype"])
        return TableModel(inputs, self.targets, tuned.module, posterior, variances, fitted, tuned)

    def _standardised_noise(self, noise: NoiseGiven, square: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Known variances in standardised units, (N, C), or (N, 0) if there are none; and the group of each row."""
        groups = torch.zeros(count, dtype=torch.int64) if noise.groups is None else noise.groups
        if noise.known is None:
            return torch.zeros(count, 0, dtype=torch.float64), groups
        return check_noise(noise.known, (count, self.outputs)) / square, groups

    def _tuned(self, x: Tensor, y: Tensor, known: Tensor, groups: Tensor, noise: NoiseGiven) -> tuple[Tuned, Tensor | None]:
        """The tuned network, and the noise variance of each group if there are groups."""
        if noise.known is not None:
            common = len(noise.known) == 1
            return self._tune(x, y, (known[:1] if common else known).to(x.device)), None
        # Each target has its own noise: one noise for all would assume the same signal-to-noise ratio.
        tuned = self._tune(x, y, "outputs" if y.ndim == 2 else "shared")
        if noise.groups is not None:
            members = groups.to(x.device)
            variances = torch.as_tensor(tuned.noise_var, dtype=torch.float64, device=x.device)
            variances = variances.reshape(1, -1).expand(noise.group_count, -1)
            for _ in range(GROUP_ROUNDS):
                variances = group_variances(tuned, (x, y), members, variances, self.options)
                tuned = self._tune(x, y, variances[members])
            return tuned, group_variances(tuned, (x, y), members, variances, self.options)
        if len(x) >= PILOT_ROWS + JUDGING_ROWS:
            order = torch.randperm(len(x), generator=self.generator)[: PILOT_ROWS + JUDGING_ROWS].to(x.device)
            first, judging = order[:PILOT_ROWS], order[PILOT_ROWS:]
            pilot, self.judged = self._posterior(tuned, x[first], y[first]), JUDGING_ROWS
            tuned = replace(tuned, noise_var=noise_on_new_rows(pilot, x[judging], y[judging]))
        return tuned, None

    def _tune(self, x: Tensor, y: Tensor, noise_var: str | Tensor) -> Tuned:
        """Tune the recipe or the user's network; widen its variances if errors of held-out rows show that they are small."""
        options = self.options
        self.generator.manual_seed(options.seed)  # every round of tuning starts from the same networks
        settings: dict[str, Any] = {
            "noise_var": noise_var, "points": options.points, "starts": options.starts, "steps": options.steps,
            "generator": self.generator, "progress": options.progress,
        }  # fmt: skip
        if options.module is None:
            size = options.size(self.rows * self.outputs)
            if size.width == math.inf:
                return tune_table(x, y, **settings)
            width = int(size.width)
            return tune_table(
                x, y, width=width, local_width=4 * width, warm_networks=size.warm_networks, warm_width=min(64, width),
                warm_steps=size.warm_steps, **settings,
            )  # fmt: skip
        module = self._module(x, y)
        if options.tune:
            return tune(module, x, y, **settings).widened()
        if isinstance(noise_var, str):
            raise ValueError("tune=False needs known noise: pass NoiseGiven(known=...), or tune")
        return Tuned(module, noise_var, 1.0, float("nan"), float("nan"), len(x), float("nan"), noise_known=True)

    def _module(self, x: Tensor, y: Tensor) -> nn.Module:
        module: Any = copy.deepcopy(self.options.module)
        if callable(module) and not isinstance(module, nn.Module):
            with globally_seeded(self.options.seed, self.options.device):
                module = module(x.shape[1], self.outputs, self.generator)
        if not isinstance(module, nn.Module):
            raise TypeError(
                "module must be None, an nn.Module or a function (n_features, n_outputs, generator) -> nn.Module, got "
                f"{self.options.module!r}"
            )
        return module.to(x)

    def _posterior(self, tuned: Tuned, x: Tensor, y: Tensor, together: bool = False) -> Posterior:
        group = self.ranks if together else None
        rows = self.rows * self.outputs if together else y.numel()
        method = self.options.method_for(rows, sum(p.numel() for p in tuned.module.parameters()))
        return tuned.fit(x, y, method=method, generator=self.generator, progress=self.options.progress, group=group)

    def _summary(self, tuned: Tuned, posterior: Posterior, features: int, dtype: torch.dtype) -> dict[str, Any]:
        log_units = tuned.points * float(self.targets.scale.log().sum())  # converts log p(y) to the units of the targets
        size = self.options.size(self.rows * self.outputs)
        infinite = is_infinite(tuned.module)
        recipe = self.options.module is None and not infinite and isinstance(tuned.module, SumOfNetworks)
        return {
            "rows": self.rows,
            "ranks": 1 if self.ranks is None else self.ranks.size,
            "features": features,
            "method": type(posterior).__name__.removesuffix("Posterior"),
            **_low_rank_facts(posterior),
            "dtype": str(dtype).removeprefix("torch."),
            "width": None if infinite else size.width,
            "warm_networks": len(tuned.module.networks) - 2 if recipe else 0,  # pyright: ignore[reportArgumentType]
            "warm_steps": 0 if tuned.warm_up is None else tuned.warm_up.steps,
            "parameters": None if infinite else sum(p.numel() for p in tuned.module.parameters()),
            "tuned_on": tuned.points,
            "noise_judged_on": self.judged,
            "log_marginal_likelihood": tuned.log_marginal_likelihood - log_units,
            "leave_one_out": tuned.leave_one_out,
            "cross_validated": tuned.cross_validated,
            "seed": self.options.seed,
            "seconds": round(time.perf_counter() - self.started, 2),
        }


def _low_rank_facts(posterior: Posterior) -> dict[str, Any]:
    """Choices and solver accuracy of a low-rank posterior; None for every entry of other posteriors."""
    if not isinstance(posterior, LowRankPosterior):
        return {"rank": None, "side": None, "iterations": None, "accuracy": None, "stages": None}
    return {
        "rank": posterior.head.rank,
        "side": posterior.side,
        "iterations": posterior.solution.iterations,
        "accuracy": posterior.solution.accuracy,
        "stages": {name: round(seconds, 2) for name, seconds in posterior.seconds.items()},
    }


_seeding = ForkLock(order=0)


@contextmanager
def globally_seeded(seed: int, device: Any) -> Iterator[None]:
    """Seed torch's global generators, for layers that draw weights from them, and restore them: one thread at a time.

    Only the generators of the CPU and of this device are touched: using another GPU would start it in every worker process.
    """
    gpus = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with _seeding, torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield
