"""The scikit-learn estimator. Comes with the extra ``ntkgp[sklearn]``."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from ntkgp._system.check_data import check_noise
from ntkgp._system.errors import NumericalWarning
from ntkgp.apps.tables.scaling import Scaling
from ntkgp.posterior.load import KINDS
from ntkgp.tuning.recipe import tune_table
from ntkgp.tuning.result import Tuned
from ntkgp.tuning.tune import tune

Array = NDArray[np.float64]


class NTKGPRegressor(RegressorMixin, BaseEstimator):
    """Gaussian-process regression with the tangent kernel of a network, hyper-parameters by marginal likelihood.

    NumPy in and out, float64 inside, several targets at once. Cost: that of :func:`ntkgp.tune_table` (:func:`ntkgp.tune` with a
    module) and of :func:`ntkgp.fit`. A fitted estimator can be pickled (the module must allow it) and answers the same bits.

    Args:
        module: None for the networks of :func:`ntkgp.tune_table`; an ``nn.Module``; or a function (n_features, n_outputs,
            generator) → ``nn.Module``. The tangent is taken of a copy.
        noise_var: ``"tuned"``, or the known variance of the observation noise in the units of y; per point through ``fit``.
        method: as for :func:`ntkgp.fit`; None lets the number of points decide.
        standardize: bring every column of X and y to mean 0 and standard deviation 1 first (a constant one to mean 0).
        width: of the hidden layers of the networks of ``module=None``, 4·width that of the local one; unused with a module.
        steps: evaluations of the marginal likelihood, as for :func:`ntkgp.tune`.
        starts: as for :func:`ntkgp.tune`.
        points: hyper-parameters are tuned on a random subset beyond so many points times targets.
        device: where to compute.
        random_state: seed of weights, subsets and draws: the same one gives the same numbers.
        verbose: show progress bars.

    Attributes:
        posterior_: of the standardised targets given standardised inputs.
        tuned_: what :func:`ntkgp.tune` found, in the same units.
        noise_var_: noise variance in the units of y, one per target; None where it was given per point.
        log_marginal_likelihood_: log p(y), y in its own units, of the `tuned_.points` points it was tuned on.
        inputs_: center and scale of the columns of X.
        targets_: center and scale of y.
        n_features_in_: number of columns of X.
        feature_names_in_: their names, where X had them.

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
        width: Any = 512,
        steps: Any = 100,
        starts: Any = 3,
        points: Any = 2000,
        device: Any = "cpu",
        random_state: Any = None,
        verbose: Any = False,
    ):  # of any type: scikit-learn wants parameters kept as they come, and judged by fit
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
            noise_var: known noise variance of each observation in the units of y, (N,) or (N, C), in place of the parameter.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        x, t = torch.tensor(X, device=self.device), torch.tensor(y, dtype=torch.float64, device=self.device)
        if not bool((t != t[:1]).any()):
            warnings.warn(
                f"y is {'a single point' if len(t) == 1 else 'constant'}, which says nothing of noise; expect a std near 0",
                NumericalWarning, stacklevel=2,
            )  # fmt: skip
        scaling = Scaling.of if self.standardize else Scaling.none
        self.inputs_, self.targets_ = scaling(x), scaling(t)
        known = self._known_noise(noise_var, t)
        x, t = self.inputs_.apply(x), self.targets_.apply(t)
        with _seeded(self.random_state, self.device) as generator:
            self.tuned_ = self._tuned(x, t, known, generator)
            self.posterior_ = self.tuned_.fit(x, t, method=self.method, generator=generator, progress=bool(self.verbose))
        square = self.targets_.scale.square()
        self.log_marginal_likelihood_ = self.tuned_.log_marginal_likelihood - self.tuned_.points * float(square.log().sum()) / 2
        if noise_var is not None:
            self.noise_var_ = None
        else:
            found = torch.as_tensor(self.tuned_.noise_var if known is None else known, dtype=torch.float64, device=self.device)
            noise = (found.flatten() * square).cpu().numpy()
            self.noise_var_ = float(noise[0]) if t.ndim == 1 else noise
        return self

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        include_noise: bool = True,
        noise_var: Any = None,
    ) -> Any:
        """The mean at X, (M,) or (M, C), and if asked how sure it is.

        Args:
            X: (M, D).
            return_std: also the standard deviations, in the shape of the mean.
            return_cov: also the covariance over the points, (M, M), or (M, M, C) with one matrix for each target.
            include_noise: whether that is the uncertainty of a new observation, as in scikit-learn with a ``WhiteKernel``;
                False for the epistemic part alone, which data would remove.
            noise_var: noise variance of the new observations in the units of y, (M,) or (M, C); needed where ``fit`` had one
                for each point.
        """
        if return_std and return_cov:
            raise RuntimeError("return_std and return_cov exclude each other; the diagonal of the covariance is the variance")
        x = self._points(X)
        uncertain = return_std or return_cov
        noise = self._noise_at(len(x), noise_var) if uncertain and include_noise else None
        if return_cov:
            return self._mean(x), self._covariance(x, noise)
        if not return_std:
            return self._mean(x)
        p = self.targets_.undo(self.posterior_.predict(x))
        variance = p.variance if noise is None else p.variance + noise.reshape(p.variance.shape)
        return p.mean.cpu().numpy(), variance.sqrt().cpu().numpy()

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: Any = 0,
        *,
        include_noise: bool = True,
        noise_var: Any = None,
    ) -> Array:
        """Draws from the posterior at X, (M, n_samples) or (M, C, n_samples).

        Args:
            X: (M, D).
            n_samples: how many functions; each is one function at all points.
            random_state: seed of the draws.
            include_noise: observations of the functions, as in scikit-learn with a ``WhiteKernel``, or their values.
            noise_var: as for :meth:`predict`.
        """
        x = self._points(X)
        noise = self._noise_at(len(x), noise_var) if include_noise else None
        with _seeded(random_state, self.device) as generator:
            values = self.posterior_.sample(n_samples, generator=generator)(x)
            values = values * self.targets_.scale + self.targets_.center
            if noise is not None:
                draws = torch.randn(values.shape, generator=generator, dtype=values.dtype)
                values = values + noise.sqrt().reshape(values.shape[1:]) * draws.to(values.device)
        return values.movedim(0, -1).cpu().numpy()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = tags.target_tags.multi_output = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        # A posterior holds functions and locks, which cannot be pickled; its state, as in files, is tensors and words.
        state = super().__getstate__()
        if "posterior_" not in state:
            return state
        return {**state, "posterior_": (self.posterior_.kind, self.posterior_.state())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "posterior_" in state:
            kind, parts = state["posterior_"]
            state = {**state, "posterior_": KINDS[kind].from_state(parts, state["tuned_"].module, None)}
        super().__setstate__(state)

    def _known_noise(self, per_point: Any, y: Tensor) -> Tensor | None:
        """What is known of the noise, in standardised units."""
        square, outputs = self.targets_.scale.square(), y.shape[1] if y.ndim == 2 else 1
        if per_point is not None:
            given = torch.as_tensor(np.asarray(per_point, dtype=np.float64), device=y.device)
            if given.ndim == 0:
                raise ValueError("noise_var of fit is one per observation; for a single number, NTKGPRegressor(noise_var=...)")
            return check_noise(given, (len(y), outputs)) / square
        if isinstance(self.noise_var, str):
            if self.noise_var != "tuned":
                raise ValueError(f"noise_var must be 'tuned' or a positive number, got {self.noise_var!r}")
            return None
        return check_noise(float(self.noise_var), (1, outputs)).to(y.device) / square

    def _tuned(self, x: Tensor, y: Tensor, known: Tensor | None, generator: torch.Generator) -> Tuned:
        """Hyper-parameters of the recipe or of the user's network, widened where leaving points out finds them too sure."""
        # One noise for all targets would mean the same signal-to-noise ratio: each has its own.
        noise = known if known is not None else "outputs" if y.ndim == 2 else "shared"
        options = {"noise_var": noise, "points": self.points, "starts": self.starts, "steps": self.steps,
                   "generator": generator, "progress": bool(self.verbose)}  # fmt: skip
        if self.module is None:
            return tune_table(x, y, width=self.width, local_width=4 * self.width, **options)
        module: Any = copy.deepcopy(self.module)
        if callable(module) and not isinstance(module, nn.Module):
            module = module(x.shape[1], y.shape[1] if y.ndim == 2 else 1, generator)
        if not isinstance(module, nn.Module):
            raise TypeError(
                "module must be None, an nn.Module or a function (n_features, n_outputs, generator) -> nn.Module, got "
                f"{self.module!r}"
            )
        return tune(module.to(x), x, y, **options).widened()

    def _points(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return self.inputs_.apply(torch.tensor(X, device=self.device))

    def _noise_at(self, count: int, noise_var: Any) -> Tensor:
        """The noise of new observations, (M, C)."""
        scale = self.targets_.scale
        if noise_var is None and self.noise_var_ is None:
            raise ValueError("fit was told the noise of each observation; pass noise_var for these too, or include_noise=False")
        noise = torch.as_tensor(np.asarray(self.noise_var_ if noise_var is None else noise_var, dtype=np.float64))
        if noise_var is None:
            noise = noise.reshape(1, -1)
        return check_noise(noise, (count, max(1, scale.numel()))).to(scale.device)

    def _mean(self, x: Tensor) -> Array:
        return (self.targets_.center + self.targets_.scale * self.posterior_.mean(x)).cpu().numpy()

    def _covariance(self, x: Tensor, noise: Tensor | None) -> Array:
        """One matrix over the points for each target."""
        scale, count = self.targets_.scale, len(x)
        joint = self.posterior_.covariance(x).double().reshape(count, -1, count, max(1, scale.numel()))
        blocks = joint.diagonal(dim1=1, dim2=3) * scale.square()  # (M, M, C)
        if noise is not None:
            rows = torch.arange(count, device=x.device)
            blocks[rows, rows] += noise
        return (blocks.squeeze(2) if scale.ndim == 0 else blocks).cpu().numpy()


@contextmanager
def _seeded(random_state: Any, device: str) -> Iterator[torch.Generator]:
    """A generator; and torch's own put aside and seeded meanwhile, for layers that can draw their weights from no other.

    Those of the CPU and of this device: to touch a GPU is to start it, in every worker and in none that was forked.
    """
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    gpus = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield torch.Generator().manual_seed(seed)
