"""The table model: a posterior over standardised columns that takes inputs and returns predictions in the user's units.

scikit-learn, the command line and the explorer all use it, so the same table gets the same model from each of them.
"""

from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ntkgp.apps.tables.scaling import Scaling
from ntkgp.posterior.interface import Posterior
from ntkgp.posterior.load import KINDS
from ntkgp.posterior.prediction import Prediction
from ntkgp.tuning.result import Tuned


@dataclass(frozen=True)
class TableModel:
    """A posterior with the units of its inputs and targets. Predictions are float64 on the CPU, whatever the device.

    Attributes:
        inputs: center and scale of the features.
        targets: center and scale of the targets; () for a vector of targets, (C,) for a matrix.
        module: the tuned network.
        posterior: the posterior of the standardised targets given standardised inputs.
        noise_var: in squared units of the targets: (1, C); or (G + 1, C), one row per group and a last row with the mean over
            the training rows, for unknown groups; None if each row had its own known variance.
        fitted: summary of the fit in values that JSON can store.
        tuned: the result of tuning; None for a model loaded from files.

    Example:
        >>> import torch
        >>> from ntkgp.apps.tables.fitting import fit_table
        >>> from ntkgp.apps.tables.options import TableOptions
        >>> x = torch.linspace(0, 10, 12).unsqueeze(1)
        >>> model = fit_table(x, 100 + 5 * x[:, 0], TableOptions(width=8, steps=5, starts=1))
        >>> model.predict(x[:3]).mean.shape
        torch.Size([3])
    """

    inputs: Scaling
    targets: Scaling
    module: nn.Module
    posterior: Posterior
    noise_var: Float[Tensor, "G C"] | None
    fitted: dict[str, Any]
    tuned: Tuned | None = None

    def mean(self, x: Float[Tensor, "M D"]) -> Tensor:
        """The mean only, in the units of the targets; skips the work for variances."""
        return self.targets.center + self.targets.scale * self.posterior.mean(self._standardised(x)).cpu().double()

    def predict(self, x: Float[Tensor, "M D"], noise_var: Float[Tensor, "M C"] | None = None) -> Prediction:
        """Mean, variance and noise in the units of the targets; `noise_var` None uses the common noise of all rows."""
        # The noise is added here, in the user's units, because the noise of the fit may differ between rows.
        standardised = self.posterior.predict(self._standardised(x), noise_var=1.0)
        found = self.targets.undo(standardised.mapped(lambda part: part.cpu().double()))
        common = self.noise_var if self.noise_var is not None and len(self.noise_var) == 1 else None
        known = common if noise_var is None else noise_var
        if known is None:
            return replace(found, noise_var=None)
        return replace(found, noise_var=known.expand(len(x), -1).reshape(found.mean.shape))

    def covariance(self, x: Float[Tensor, "M D"]) -> Float[Tensor, "M M C"]:
        """The epistemic covariance between the points, one matrix per target, in squared units of the targets."""
        scale, count = self.targets.scale, len(x)
        joint = self.posterior.covariance(self._standardised(x)).cpu().double()
        return joint.reshape(count, -1, count, max(1, scale.numel())).diagonal(dim1=1, dim2=3) * scale.square()

    def values(self, functions: Any, x: Float[Tensor, "M D"]) -> Tensor:
        """Evaluate functions drawn from the posterior at x, in the units of the targets."""
        return self.targets.center + self.targets.scale * functions(self._standardised(x)).cpu().double()

    def __getstate__(self) -> dict[str, Any]:
        # A posterior holds functions and locks, which cannot be pickled; its state, as in files, is tensors and plain values.
        return {**vars(self), "posterior": (self.posterior.kind, self.posterior.state())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kind, parts = state["posterior"]
        vars(self).update(state, posterior=KINDS[kind].from_state(parts, state["module"], None))

    def _standardised(self, x: Tensor) -> Tensor:
        return self.inputs.apply(x).to(next(self.module.parameters()))
