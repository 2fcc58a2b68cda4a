"""Compare a prediction with observations: the size of its errors, and whether its standard deviations match them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.posterior.prediction import Prediction, check_observations

LEVELS = tuple(k / 20 for k in range(1, 20))  # central intervals of 5 %, 10 %, …, 95 %


@dataclass(frozen=True)
class Evaluation:
    """Errors, scores and calibration of a prediction on M observations (all outputs together); returned by :func:`evaluate`.

    Attributes:
        nll: mean negative log predictive density, in nats; lower is better. It scores mean and std together.
        rmse: root mean square error of the mean, in the units of y.
        crps: mean continuous ranked probability score, in the units of y; lower is better, and outliers weigh less than in nll.
        sharpness: mean predicted standard deviation of an observation, in the units of y.
        pit: Φ((y − mean) / std) of each observation: uniform on [0, 1] if calibrated. In float64, on the CPU.

    Example:
        >>> import torch, ntkgp
        >>> p = ntkgp.Prediction(*torch.tensor([[0.0, 0.0], [3.0, 3.0], [3.0, 3.0], [3.0, 3.0], [1.0, 1.0]]))  # std 2
        >>> e = ntkgp.diagnostics.evaluate(p, torch.tensor([1.0, 5.0]))
        >>> e.coverage(0.95), round(e.rmse, 3)  # 5 lies outside ±1.96 · 2
        (0.5, 3.606)
    """

    nll: float
    rmse: float
    crps: float
    sharpness: float
    pit: Float[Tensor, "M"]

    def coverage(self, level: float = 0.95) -> float:
        """Fraction of the observations inside their central interval of this level; equals the level if calibrated."""
        return float(self.calibration([level])[0])

    def calibration(self, levels: Sequence[float] | Tensor = LEVELS) -> Float[Tensor, "L"]:
        """The coverage at each level. Cost: one sort of the M observations."""
        claimed = torch.as_tensor(levels, dtype=torch.float64)
        if claimed.ndim != 1 or not bool(((claimed >= 0) & (claimed <= 1)).all()):
            raise ValueError(f"levels must be a list of numbers between 0 and 1, got {levels!r}; write 95 % as 0.95")
        depth = (2 * self.pit - 1).abs().sort().values  # level of the smallest interval that contains the observation
        return torch.searchsorted(depth, claimed, right=True).double() / len(depth)

    @property
    def calibration_error(self) -> float:
        """Mean absolute difference between level and observed coverage, over the levels 5 %, 10 %, …, 95 %."""
        return float(self._gaps.abs().mean())

    @property
    def verdict(self) -> str:
        """One of "calibrated", "over-confident", "under-confident" and "heavy-tailed".

        Over-confident: intervals cover too little, at 95 % or on average over all levels. Under-confident: they cover too much
        on average. Heavy-tailed: too much on average, but too little at 95 %. A gap counts if it exceeds both 2 % and 2.5
        standard errors of M independent observations, so few observations can reveal only large gaps.
        """
        short = self.coverage() < 0.95 - self._margin(math.sqrt(0.95 * 0.05))
        # Averaged over all levels an observation counts 1 − |2·pit − 1|, which is uniform on [0, 1]: standard deviation 1/√12.
        gap, margin = float(self._gaps.mean()), self._margin(1 / math.sqrt(12))
        if gap > margin:
            return "heavy-tailed" if short else "under-confident"
        return "over-confident" if short or gap < -margin else "calibrated"

    @property
    def lean(self) -> str:
        """Bias of the means: "too low", "too high", or "centred" if the mean PIT is within 0.05 or chance of ½."""
        # Chance is three standard errors, because the errors of neighbouring points are correlated.
        lean = float(self.pit.mean()) - 0.5
        margin = max(0.05, 3 * float(self.pit.std(correction=0)) / math.sqrt(len(self.pit)))
        return "too low" if lean > margin else "too high" if lean < -margin else "centred"

    def as_dict(self) -> dict[str, float | int | str]:
        """The results as plain numbers and texts, ready for JSON."""
        return {
            "observations": len(self.pit),
            "nll": self.nll,
            "rmse": self.rmse,
            "crps": self.crps,
            "sharpness": self.sharpness,
            "coverage_95": self.coverage(),
            "calibration_error": self.calibration_error,
            "verdict": self.verdict,
            "lean": self.lean,
        }

    def __str__(self) -> str:
        return (
            f"{len(self.pit)} observations: rmse {self.rmse:.4g}, nll {self.nll:.4g}, crps {self.crps:.4g}, "
            f"sharpness {self.sharpness:.4g}, 95 % intervals cover {self.coverage():.1%}, "
            f"calibration error {self.calibration_error:.3f}: {self.verdict}"
        )

    @property
    def _gaps(self) -> Tensor:
        return self.calibration() - torch.tensor(LEVELS, dtype=torch.float64)

    def _margin(self, std: float) -> float:
        return max(0.02, 2.5 * std / math.sqrt(len(self.pit)))


def evaluate(prediction: Prediction, y: Tensor) -> Evaluation:
    """Compare a prediction with the observations y, all outputs together; computes in float64.

    The standard deviations are those of a new observation: epistemic variance plus noise. With z = (y − mean)/std, the CRPS of
    a Gaussian is std·(z(2Φ(z) − 1) + 2φ(z) − 1/√π) (Gneiting & Raftery 2007).

    Args:
        prediction: from ``posterior.predict``, with ``noise_var`` if the training noise differed between points.
        y: held-out observations in the shape of ``prediction.mean``.

    Example:
        >>> import torch, ntkgp
        >>> g = torch.Generator().manual_seed(0)
        >>> net = ntkgp.mlp(1, width=64, generator=g)
        >>> x = torch.rand(60, 1, generator=g) * 2 - 1
        >>> y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(60, generator=g)
        >>> posterior = ntkgp.fit(net, x[:40], y[:40], noise_var=0.01)
        >>> evaluate(posterior.predict(x[40:]), y[40:]).verdict
        'calibrated'
    """
    check_observations(y, prediction.mean)
    if not y.numel():
        raise ValueError("there is nothing to evaluate: the prediction and y hold no points")
    _ = prediction.total_std  # raises an error that says what to pass if the noise is unknown
    exact = prediction.mapped(lambda t: t.detach().cpu().double().flatten())
    y, std = y.detach().cpu().double().flatten(), exact.total_std
    error, nll = y - exact.mean, -exact.log_density(y)
    z = error / std
    pit = torch.special.ndtr(z)
    peak = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    crps = std * (z * (2 * pit - 1) + 2 * peak - 1 / math.sqrt(math.pi))
    return Evaluation(
        nll=float(nll.mean()),
        rmse=math.sqrt(float(error.square().mean())),
        crps=float(crps.mean()),
        sharpness=float(std.mean()),
        pit=pit,
    )
