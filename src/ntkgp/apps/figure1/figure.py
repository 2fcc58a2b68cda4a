"""Figure 1 of the paper: the posterior and its approximations on a toy problem, with two panels for our method."""

import json
import os
import platform
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn

from ntkgp._system.locks import cached_property
from ntkgp.apps.figure1.toys import TOYS
from ntkgp.apps.plots.functions import posterior_1d
from ntkgp.linalg.svd.dense import DenseSVD
from ntkgp.networks.layers import TrigonometricInputs
from ntkgp.networks.mlp import mlp
from ntkgp.posterior.exact.spectral import JointKernel, SpectralPosterior, Spectrum
from ntkgp.posterior.trained.covariance import PaperCovariance, TightCovariance
from ntkgp.posterior.trained.plan import plan_covariance
from ntkgp.posterior.trained.training.accelerated import AcceleratedGD
from ntkgp.posterior.trained.training.task import TrainedWeights
from ntkgp.posterior.trained.training.trainer import Trainer
from ntkgp.problem.build import build_problem
from ntkgp.problem.source import Source
from ntkgp.storage.file import installed_version


@dataclass(frozen=True)
class Settings:
    """Settings of the figure; the defaults are the paper's."""

    problem: str = "paper"
    seed: int = 0
    width: int = 512
    depth: int = 2
    rank: int = 5
    tail: int = 20
    queries: int = 201


@dataclass(frozen=True)
class Panel:
    """One posterior on the query grid, and the name of the panel it approximates."""

    title: str
    mean: Float[Tensor, "M"]
    std: Float[Tensor, "M"]
    approximates: str | None = None


@dataclass(frozen=True)
class Figure1:
    """The computed figure: data, panels, and the error of each panel against the one it approximates."""

    settings: Settings
    trainer: Trainer
    data: tuple[Tensor, Tensor]
    x: Float[Tensor, "M"]
    truth: Float[Tensor, "M"]
    panels: dict[str, Panel]
    trained: TrainedWeights

    @cached_property
    def errors(self) -> dict[str, dict[str, float | str]]:
        """Relative L2 error of each panel against the one it approximates."""
        return {
            name: {
                "against": panel.approximates,
                "mean": _relative(panel.mean, self.panels[panel.approximates].mean),
                "std": _relative(panel.std, self.panels[panel.approximates].std),
            }
            for name, panel in self.panels.items()
            if panel.approximates is not None
        }

    def to_json(self) -> str:
        """Panels, errors, settings and environment, so that the figure can be drawn without computing it again."""
        x = self.x.tolist()
        training = {key: getattr(self.trained, key) for key in ("steps", "converged", "accuracy", "seconds")}
        record = {
            "panels": {n: {"x": x, "mean": p.mean.tolist(), "std": p.std.tolist()} for n, p in self.panels.items()},
            "errors": self.errors,
            "settings": asdict(self.settings),
            "trainer": {"name": type(self.trainer).__name__, **{k: str(v) for k, v in vars(self.trainer).items()}},
            "training": training,
            "data": {"x": self.data[0].flatten().tolist(), "y": self.data[1].tolist()},
            "environment": environment(),
        }
        return json.dumps(record, indent=1)

    def draw(self) -> Figure:
        """The paper's four panels in their printed order, ours in a third column."""
        figure = Figure(figsize=(13, 6.4), layout="constrained")
        order = ["analytic", "upper_bound_all", "ours", "upper_bound_5", "gradient_descent", "ours_gradient_descent"]
        axes = figure.subplots(2, 3, sharex=True, sharey=True)
        for ax, name in zip(axes.flat, order, strict=True):
            panel = self.panels[name]
            data = (self.data[0].flatten(), self.data[1])
            color = "#009E73" if name.startswith("ours") else "#0072B2"
            posterior_1d(ax, self.x, panel.mean, panel.std, data=data, truth=self.truth, color=color)
            ax.set_title(panel.title, fontsize=11)
            if name in self.errors:
                note = "against {against}: mean {mean:.2%}, std {std:.2%}".format(**self.errors[name])
                ax.annotate(
                    note.replace("_", " "), (0.5, 0.02), xycoords="axes fraction", ha="center", fontsize=8, color="#555555"
                )
        analytic = self.panels["analytic"]
        low = min(float((analytic.mean - 2 * analytic.std).min()), float(self.data[1].min()))
        high = max(float((analytic.mean + 2 * analytic.std).max()), float(self.data[1].max()))
        axes[0, 0].set_ylim(low - 0.15 * (high - low), high + 0.12 * (high - low))
        axes[0, 0].legend(loc="upper center", ncols=5, fontsize=8, frameon=False, columnspacing=1.0, handlelength=1.4)
        return figure


def compute(settings: Settings | None = None, trainer: Trainer | None = None, progress: bool = False) -> Figure1:
    """Compute all panels. The K + 1 networks (and T more for ours) are trained once and shared by the panels.

    Example:
        >>> from ntkgp.apps.figure1.figure import Settings, compute
        >>> figure = compute(Settings(width=32, tail=2, queries=11))
        >>> sorted(figure.panels)
        ['analytic', 'gradient_descent', 'ours', 'ours_gradient_descent', 'upper_bound_5', 'upper_bound_all']
    """
    settings, trainer = settings or Settings(), trainer or AcceleratedGD()
    if settings.problem not in TOYS:
        raise ValueError(f"problem must be one of {sorted(TOYS)}, got {settings.problem!r}")
    toy, generator = TOYS[settings.problem], torch.Generator().manual_seed(settings.seed)
    x, y = toy.draw(generator)
    network = mlp(2, width=settings.width, depth=settings.depth, generator=generator)
    net = nn.Sequential(TrigonometricInputs(*toy.queried), network)
    grid = torch.linspace(*toy.queried, settings.queries).unsqueeze(1)

    problem = build_problem(net, Source(x, y, toy.noise_std**2), dtype=torch.float64)
    kernel = JointKernel.of(problem.operators.at(grid), problem.operators.jacobian)
    exact = SpectralPosterior(kernel, Spectrum.of(kernel), problem.data.residual, toy.noise_std**2)

    paper, ours, K, N = PaperCovariance(), TightCovariance(), settings.rank, len(y)
    plan = plan_covariance(problem, K, settings.tail, DenseSVD(), ours, generator)
    networks = plan.job(trainer).train(progress)
    values = networks(grid).double()
    mean, parts = values[:, 0], plan.parts(values[:, 1:])
    without_tail = replace(plan, estimate=paper, noise=plan.noise[:, :0], tail=plan.tail[:, :0])
    as_printed = without_tail.parts(values[:, 1 : K + 1])

    def std(variance: Tensor) -> Tensor:
        return variance.clamp_min(0).sqrt()

    panels = {
        "analytic": Panel("Analytic posterior", exact.mean, std(exact.variance)),
        "upper_bound_all": Panel("Upper bound, all eigenvectors", exact.mean, std(exact.bound(paper, N)), "analytic"),
        "upper_bound_5": Panel(f"Upper bound, {K} eigenvectors", exact.mean, std(exact.bound(paper, K)), "analytic"),
        "gradient_descent": Panel(
            f"Gradient descent, K = {K}, K′ = 0", mean, std(kernel.prior - as_printed.explained_diag()), "upper_bound_5"
        ),
        "ours": Panel(f"Ours: weights Σ² + σ², {K} eigenvectors", exact.mean, std(exact.bound(ours, K)), "analytic"),
        "ours_gradient_descent": Panel(
            f"Ours: gradient descent, K = {K}, T = {settings.tail}",
            mean,
            std(kernel.prior - parts.explained_diag()),
            "analytic",
        ),
    }
    flat = grid.flatten()
    return Figure1(settings, trainer, (x, y), flat, toy.truth(flat), panels, networks.trained)


def write(figure: Figure1, folder: Path) -> list[Path]:
    """Write figure1.png and figure1.json into the folder, which is created if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    picture, numbers = folder / "figure1.png", folder / "figure1.json"
    figure.draw().savefig(picture, dpi=160)
    numbers.write_text(figure.to_json())
    return [picture, numbers]


def environment() -> dict[str, str | int | None]:
    """Versions and hardware that a measured number depends on."""
    return {
        "ntkgp": installed_version("ntkgp"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _relative(value: Tensor, reference: Tensor) -> float:
    return float((value - reference).norm() / reference.norm())
