"""The scikit-learn estimator. Needs the extra ``ntkgp[sklearn]``."""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ntkgp._system.check_data import check_noise, check_targets
from ntkgp._system.errors import NumericalWarning
from ntkgp.apps.arrays import check_numbers, tensor_of
from ntkgp.apps.tables.fitting import NoiseGiven, fit_table
from ntkgp.apps.tables.options import TableOptions
from ntkgp.apps.tables.scaling import Scaling
from ntkgp.posterior.interface import Posterior
from ntkgp.tuning.result import Tuned

Array = NDArray[np.float64]

__all__ = ["NTKGPRegressor"]


class NTKGPRegressor(RegressorMixin, BaseEstimator):
    """Gaussian-process regression with the tangent kernel of a network; the marginal likelihood tunes the hyper-parameters.

    Takes and returns NumPy arrays, computes in float64, and handles several targets at once. Cost: :func:`ntkgp.tune_table`
    (:func:`ntkgp.tune` with a module) plus :func:`ntkgp.fit`. A fitted estimator can be pickled if its module can; after
    unpickling it returns bit-identical predictions.

    Args:
        module: None for the networks of :func:`ntkgp.tune_table`; an ``nn.Module``; or a function (n_features, n_outputs,
            generator) → ``nn.Module``. The estimator works on a copy.
        noise_var: ``"tuned"``, or the known variance of the noise in squared units of y; pass one per point to ``fit``.
        method: as for :func:`ntkgp.fit`; None chooses it from the number of points.
        standardize: scale every column of X and y to mean 0 and standard deviation 1 first (a constant column to mean 0).
        width: width of the hidden layers when ``module=None``; ignored with a module. None means infinite width, which needs
            one matrix of N² numbers, or, above 20,000 rows times targets, a finite width (the local network has 4·width).
        steps: number of evaluations of the marginal likelihood, as for :func:`ntkgp.tune`.
        starts: as for :func:`ntkgp.tune`.
        points: with more points times targets than this, a random subset of this size tunes the hyper-parameters.
        device: torch device for the computation.
        random_state: seed of weights, subsets and draws. The same seed gives the same numbers; an integer gives the same model
            as ``ntkgp fit --seed``.
        verbose: show progress bars.

    Attributes:
        model_: the :class:`~ntkgp.apps.tables.model.TableModel` that provides all attributes below.
        posterior_: the posterior of the standardised targets given standardised inputs.
        tuned_: the result of :func:`ntkgp.tune`, in standardised units.
        noise_var_: noise variance in squared units of y, one per target; None if ``fit`` received one per point.
        log_marginal_likelihood_: log p(y) in the units of y, for the `tuned_.points` points used for tuning.
        inputs_: center and scale of the columns of X.
        targets_: center and scale of y.
        n_features_in_: number of columns of X.
        feature_names_in_: names of the columns of X, if X had names.

    Example:
        >>> import numpy as np
        >>> from ntkgp.sklearn import NTKGPRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-2, 2, (60, 1))
        >>> y = 20 + 5 * np.sin(2 * X[:, 0]) + rng.normal(0, 0.5, 60)
        >>> model = NTKGPRegressor(width=32, steps=20, random_state=0).fit(X, y)
        >>> mean, std = model.predict([[0.0], [9.0]], return_std=True)
        >>> bool(abs(mean[0] - 20) < 1 and std[0] < 1 < std[1])
        True
        >>> bool(0.1 < model.noise_var_ < 0.5)
        True
    """

    def __init__(
        self,
        module: Any = None,
        *,
        noise_var: Any = "tuned",
        method: Any = None,
        standardize: Any = True,
        width: Any = None,
        steps: Any = 100,
        starts: Any = 3,
        points: Any = 2000,
        device: Any = "cpu",
        random_state: Any = None,
        verbose: Any = False,
    ):  # Any: scikit-learn requires that __init__ stores parameters unchanged and that fit checks them
        self.module = module
        self.noise_var = noise_var
        self.method = method
        self.standardize = standardize
        self.width = width
        self.steps = steps
        self.starts = starts
        self.points = points
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, noise_var: Any = None) -> "NTKGPRegressor":
        """Tune the hyper-parameters and compute the posterior.

        Args:
            X: (N, D).
            y: (N,) or (N, C).
            noise_var: known noise variance per point in squared units of y, (N,) or (N, C); overrides the parameter.
        """
        vars(self).pop("model_", None)  # a fit that fails leaves no model of other data behind
        check_numbers(X, "X")  # before validate_data, which turns dates into numbers
        check_numbers(y, "y")
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        x, t = tensor_of(X, "X"), tensor_of(y, "y")
        check_targets(t, x, t.shape[1] if t.ndim == 2 else 1)
        if not bool((t != t[:1]).any()):
            warnings.warn(
                f"y is {'a single point' if len(t) == 1 else 'constant'}, so the noise cannot be estimated: expect std near 0",
                NumericalWarning, stacklevel=2,
            )  # fmt: skip
        counts = {name: _plain(getattr(self, name)) for name in ("width", "points", "steps", "starts")}
        options = TableOptions(
            module=self.module, method=self.method, standardize=bool(self.standardize), seed=_seed(self.random_state),
            device=self.device, progress=bool(self.verbose), **counts,
        )  # fmt: skip
        self.model_ = fit_table(x, t, options, self._known_noise(noise_var, t))
        return self

    @property
    def posterior_(self) -> Posterior:
        """The posterior of the standardised targets given standardised inputs."""
        return self.model_.posterior

    @property
    def tuned_(self) -> Tuned:
        """The result of tuning, in standardised units."""
        if self.model_.tuned is None:
            raise AttributeError("this model was loaded from files, which do not store the result of tuning; call fit")
        return self.model_.tuned

    @property
    def noise_var_(self) -> Any:
        """Noise variance in squared units of y, one per target; None if ``fit`` received one per point."""
        variances = self.model_.noise_var
        if variances is None:
            return None
        return float(variances) if self.targets_.scale.ndim == 0 else variances[0].numpy()

    @property
    def log_marginal_likelihood_(self) -> float:
        """Log p(y) in the units of y, for the points used for tuning."""
        return self.model_.fitted["log_marginal_likelihood"]

    @property
    def inputs_(self) -> Scaling:
        """Center and scale of the columns of X."""
        return self.model_.inputs

    @property
    def targets_(self) -> Scaling:
        """Center and scale of y."""
        return self.model_.targets

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        include_noise: bool = True,
        noise_var: Any = None,
    ) -> Any:
        """The mean at X, (M,) or (M, C), and on request its standard deviations or covariance.

        Args:
            X: (M, D).
            return_std: also return the standard deviations, in the shape of the mean.
            return_cov: also return the covariance between the points, (M, M), or (M, M, C) with one matrix per target.
            include_noise: True for the uncertainty of a new observation, as in scikit-learn with a ``WhiteKernel``; False for
                the epistemic part only, which more data would remove.
            noise_var: noise variance of the new observations in squared units of y, (M,) or (M, C); required if ``fit``
                received one per point.
        """
        if return_std and return_cov:
            raise RuntimeError("return_std and return_cov exclude each other; use the diagonal of the covariance as variance")
        x = self._points(X)
        noise = self._noise_at(len(x), noise_var) if (return_std or return_cov) and include_noise else None
        if return_cov:
            return self.model_.mean(x).numpy(), self._covariance(x, noise)
        if not return_std:
            return self.model_.mean(x).numpy()
        p = self.model_.predict(x)
        variance = p.variance if noise is None else p.variance + noise.reshape(p.variance.shape)
        return p.mean.numpy(), variance.sqrt().numpy()

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: Any = 0,
        *,
        include_noise: bool = True,
        noise_var: Any = None,
    ) -> Array:
        """Draw functions from the posterior and evaluate them at X: (M, n_samples) or (M, C, n_samples).

        Args:
            X: (M, D).
            n_samples: number of functions; each function is evaluated at all points.
            random_state: seed of the draws.
            include_noise: True for noisy observations of the functions, as in scikit-learn with a ``WhiteKernel``; False for
                their values.
            noise_var: as for :meth:`predict`.
        """
        x = self._points(X)
        noise = self._noise_at(len(x), noise_var) if include_noise else None
        generator = torch.Generator().manual_seed(_seed(random_state))
        values = self.model_.values(self.posterior_.sample(n_samples, generator=generator), x)
        if noise is not None:
            draws = torch.randn(values.shape, generator=generator, dtype=values.dtype)
            values = values + noise.sqrt().reshape(values.shape[1:]) * draws
        return values.movedim(0, -1).numpy()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = tags.target_tags.multi_output = True
        return tags

    def _known_noise(self, per_point: Any, y: Tensor) -> NoiseGiven:
        """The noise that the user gave, in squared units of y."""
        outputs = y.shape[1] if y.ndim == 2 else 1
        if per_point is not None:
            given = tensor_of(per_point, "noise_var")
            if given.ndim == 0:
                raise ValueError(
                    "noise_var of fit must be one per observation, got a single number; pass that as "
                    "NTKGPRegressor(noise_var=...)"
                )
            return NoiseGiven(known=check_noise(given, (len(y), outputs)))
        if isinstance(self.noise_var, str):
            if self.noise_var != "tuned":
                raise ValueError(f"noise_var must be 'tuned' or a positive number, got {self.noise_var!r}")
            return NoiseGiven()
        if isinstance(self.noise_var, bool) or not hasattr(self.noise_var, "__float__") or np.ndim(self.noise_var):
            raise TypeError(
                f"noise_var must be 'tuned' or a positive number, got {self.noise_var!r}; pass one per observation to "
                "fit(X, y, noise_var=...)"
            )
        return NoiseGiven(known=check_noise(float(self.noise_var), (1, outputs)))

    def _points(self, X: Any) -> Tensor:
        check_is_fitted(self, "model_")
        check_numbers(X, "X")
        return tensor_of(validate_data(self, X, dtype=np.float64, reset=False), "X")

    def _noise_at(self, count: int, noise_var: Any) -> Tensor:
        """The noise variance of new observations, (M, C)."""
        outputs = max(1, self.targets_.scale.numel())
        if noise_var is not None:
            return check_noise(tensor_of(noise_var, "noise_var"), (count, outputs))
        if self.model_.noise_var is None:
            raise ValueError(
                "fit received one noise variance per observation; pass noise_var for these points too, or include_noise=False"
            )
        return self.model_.noise_var.expand(count, outputs)

    def _covariance(self, x: Tensor, noise: Tensor | None) -> Array:
        """One covariance matrix between the points per target."""
        blocks = self.model_.covariance(x)  # (M, M, C)
        if noise is not None:
            rows = torch.arange(len(x))
            blocks[rows, rows] += noise
        return (blocks.squeeze(2) if self.targets_.scale.ndim == 0 else blocks).numpy()


def _plain(value: Any) -> Any:
    """Convert a whole number of NumPy to int, since products of small NumPy integers wrap; return anything else unchanged."""
    return int(value) if isinstance(value, np.integer) else value


def _seed(random_state: Any) -> int:
    """Use an integer unchanged, so that it gives the same model as the command line; draw a seed from anything else."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        check_random_state(random_state)  # raises an error if it is out of range
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
