"""A report on a posterior: calibration on held-out data, and the distance of a trained network from its tangent."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ntkgp.apps.diagnostics.evaluation import LEVELS, Evaluation, evaluate
from ntkgp.apps.diagnostics.kernel_regime import KernelRegime, regime_of
from ntkgp.apps.plots import calibration as plots
from ntkgp.apps.plots import style
from ntkgp.posterior.interface import Posterior
from ntkgp.posterior.prediction import Prediction, check_observations
from ntkgp.tangent.network import PureNetwork

ADVICE = {
    "calibrated": "its intervals hold what they claim",
    "over-confident": "intervals too narrow; try tune(), or a larger noise_var or prior_var",
    "under-confident": "intervals too wide; try tune(), or a smaller noise_var or prior_var",
    "heavy-tailed": "intervals too wide for most and too narrow for a few; look for outliers, or give noise_var per point",
}


@dataclass(frozen=True)
class Report:
    """A posterior compared with held-out observations: print it, plot it, save it. Returned by :func:`report`.

    Attributes:
        prediction: the posterior at the held-out points.
        y: the observations at these points.
        evaluation: errors, scores and calibration.
        regime: distance of the trained network from its tangent; None without a trained network.

    Example:
        >>> import torch, ntkgp
        >>> p = ntkgp.Prediction(*torch.ones(5, 40))
        >>> y = torch.linspace(-4, 6, 40)
        >>> print(ntkgp.diagnostics.Report(p, y, ntkgp.diagnostics.evaluate(p, y)))
        40 held-out observations
          rmse                   2.96   typical error; y itself spreads by 2.96
          sharpness             1.414   std claimed for an observation; 50 % of the variance is epistemic
          coverage at 95 %      55.0%   share of the observations inside their 95 % interval
          calibration error     0.287   mean gap between claimed and observed coverage
          nll                   3.456   nats an observation, mean and std together; lower is better
          crps                  1.961   the same in units of y, gentler on outliers; lower is better
        over-confident: intervals too narrow; try tune(), or a larger noise_var or prior_var
    """

    prediction: Prediction
    y: Tensor
    evaluation: Evaluation
    regime: KernelRegime | None = None

    def __str__(self) -> str:
        e, p, M = self.evaluation, self.prediction, len(self.evaluation.pit)
        # Mean fractions of the total variance: the epistemic part, and the width of the certified bracket.
        epistemic, bracket = (
            100 * float((part / p.total_std.square()).detach().mean()) for part in (p.variance, p.upper - p.lower)
        )
        spread = float(self.y.detach().std(dim=0, correction=0).square().mean().sqrt())  # per output, around its own mean
        claimed = f"std claimed for an observation; {epistemic:.0f} % of the variance is epistemic"
        rows = [
            ("rmse", f"{e.rmse:.4g}", f"typical error; y itself spreads by {spread:.4g}"),
            ("sharpness", f"{e.sharpness:.4g}", claimed),
            ("coverage at 95 %", f"{e.coverage():.1%}", "share of the observations inside their 95 % interval"),
            ("calibration error", f"{e.calibration_error:.3f}", "mean gap between claimed and observed coverage"),
            ("nll", f"{e.nll:.4g}", "nats an observation, mean and std together; lower is better"),
            ("crps", f"{e.crps:.4g}", "the same in units of y, gentler on outliers; lower is better"),
        ]
        lines = [f"{M} held-out observations", *_table(rows), f"{e.verdict}: {ADVICE[e.verdict]}"]
        if bracket > 10:
            lines.append(f"the total variance is known only to within {bracket:.0f} %: raise the rank of the method")
        if e.lean != "centred":
            lines.append(f"means {e.lean}: centre y, or give fit a prior_mean")
        if self.regime is not None:
            r = self.regime
            rows = [
                ("mean drift", f"{r.mean_drift:.3g}", "share of the learned change that the linearised network misses"),
                ("kernel change", f"{r.kernel_change:.3g}", "relative change of the tangent kernel by training"),
                ("weight drift", f"{r.weight_drift:.3g}", "relative change of the weights by training"),
            ]
            lines += ["the trained network against its tangent", *_table(rows), r.verdict]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """The results as plain numbers and texts, ready for JSON, with the calibration curve."""
        return {
            "evaluation": self.evaluation.as_dict(),
            "calibration": {"claimed": list(LEVELS), "observed": self.evaluation.calibration().tolist()},
            "kernel_regime": None if self.regime is None else self.regime.as_dict(),
        }

    def plot(self) -> style.Figure:
        """Calibration curve, PIT histogram, predicted against observed, and standardised errors; needs matplotlib."""
        figure = style.figure(9, 7.6)
        (coverage, histogram), (means, errors) = figure.subplots(2, 2)
        plots.calibration(self.evaluation, coverage).set_title("Do intervals hold what they claim?", fontsize=11)
        plots.pit(self.evaluation, histogram).set_title("Where do observations fall? Flat is right", fontsize=11)
        plots.predicted(self.prediction, self.y, means).set_title("How good are the means?", fontsize=11)
        plots.residuals(self.prediction, self.y, errors).set_title("Are errors as large as claimed?", fontsize=11)
        for ax in (coverage, means, errors):
            ax.legend(fontsize=8, frameon=False)
        figure.suptitle(f"{len(self.evaluation.pit)} held-out observations: {self.evaluation.verdict}", fontsize=12)
        return figure

    def save(self, folder: str | Path) -> list[Path]:
        """Write report.txt, report.json and report.png into the folder, which is created if it does not exist."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        words, numbers, picture = (folder / f"report.{kind}" for kind in ("txt", "json", "png"))
        words.write_text(f"{self}\n", encoding="utf-8")
        numbers.write_text(json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        self.plot().savefig(picture, dpi=160)
        return [words, numbers, picture]


def report(
    posterior: Posterior,
    x: Tensor,
    y: Tensor,
    *,
    noise_var: float | Tensor | None = None,
    trained: nn.Module | None = None,
) -> Report:
    """Predict held-out points and compare the predictions with the observations there.

    Args:
        posterior: from :func:`fit`.
        x: held-out points, (M, ...). Training points would give too good numbers.
        y: observations at x, (M,) or (M, C) as in ``fit``.
        noise_var: noise variance of y; needed only if the training noise differed between points.
        trained: the posterior's network after ordinary training; :func:`kernel_regime` then checks whether the posterior
            describes it.

    Example:
        >>> import torch, ntkgp
        >>> g = torch.Generator().manual_seed(0)
        >>> net = ntkgp.mlp(1, width=64, generator=g)
        >>> x = torch.rand(60, 1, generator=g) * 2 - 1
        >>> y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(60, generator=g)
        >>> posterior = ntkgp.fit(net, x[:40], y[:40], noise_var=0.01)
        >>> r = report(posterior, x[40:], y[40:])
        >>> r.evaluation.verdict, r.plot().axes[0].get_ylabel()
        ('calibrated', 'observed coverage')
    """
    if not isinstance(posterior, Posterior):
        raise TypeError(f"posterior must come from ntkgp.fit, got {type(posterior).__name__}")
    prediction = posterior.predict(x.detach() if isinstance(x, Tensor) else x, noise_var=noise_var)
    if prediction.noise_var is None:
        raise ValueError("the training noise differed between points; pass noise_var, the noise variance of the observations y")
    check_observations(y, prediction.mean)
    regime = None if trained is None else regime_of(_opened(posterior), trained, x, points=200)
    return Report(prediction, y.detach(), evaluate(prediction, y), regime)


def _opened(posterior: Posterior) -> tuple[PureNetwork, int]:
    """The network of a posterior, at θ0 and in float64, and its number of outputs."""
    problem = posterior.problem
    return problem.network.to(torch.float64), problem.outputs


def _table(rows: list[tuple[str, str, str]]) -> list[str]:
    return [f"  {name:<17}{value:>10}   {meaning}" for name, value, meaning in rows]
