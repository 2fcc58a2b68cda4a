"""The BoTorch model: Bayesian optimisation with the posterior of a network. Needs the extra ``ntkgp[botorch]``."""

from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.model import FantasizeMixin, Model
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.posteriors import GPyTorchPosterior, TransformedPosterior
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp.apps.botorch import checks, data
from ntkgp.apps.botorch.conditioning import Observations, batch_shape, gaussian, joint
from ntkgp.apps.botorch.paths import paths_of
from ntkgp.posterior.exact.posterior import ExactPosterior
from ntkgp.posterior.interface import Posterior
from ntkgp.tuning.result import Tuned


class NTKGPModel(Model, FantasizeMixin):
    """A BoTorch model over the tangent-kernel posterior of a network, built from data like ``SingleTaskGP``.

    The constructor tunes the hyper-parameters by marginal likelihood: there is no ``fit_gpytorch_mll`` to call, and ``train``
    and ``eval`` have no effect. Computes in float64 and answers in the dtype of the query. Models the outputs jointly.
    Acquisition functions that ask a model for posteriors, fantasies or conditioning work; those that access GPyTorch's kernels
    (``LogNoisyExpectedImprovement``, BoTorch's own pathwise sampling) do not. Cost of a query: b·q·m·(n·m)² operations for b
    batches of q points.

    Args:
        train_X: (n, d), in the unit cube unless the transform or the module scales it to order one.
        train_Y: (n, m).
        module: None for :func:`default_network`, which takes inputs in the unit cube; any ``nn.Module`` that maps (n, d) to
            (n, m) and is then tuned; or a :class:`ntkgp.tuning.Tuned`, which is used without tuning.
        noise_var: ``"tuned"``, or the known noise variance in squared units of train_Y: a number, or one per observation
            (n, m).
        input_transform: as for ``SingleTaskGP``; the parameters of a transform are not trained.
        outcome_transform: as for ``SingleTaskGP``: ``Standardize`` by default; None for no transform.
        starts: as for :func:`ntkgp.tune`.
        steps: as for :func:`ntkgp.tune`.
        hyper_prior: as for :func:`ntkgp.tune`; without it, tuning over-fits the few points of a search.
        generator: source of the default network's weights; None for the global one.

    Attributes:
        gp: the :class:`ntkgp.posterior.Posterior` of transformed targets given transformed inputs.
        tuned: the tuned hyper-parameters; pass them as `module` to build the next model without tuning. None after
            :meth:`from_posterior`.

    Example:
        >>> import torch
        >>> from botorch.acquisition import LogExpectedImprovement
        >>> from botorch.optim import optimize_acqf
        >>> g = torch.Generator().manual_seed(0)
        >>> X = torch.rand(12, 2, generator=g, dtype=torch.float64)
        >>> Y = -(X - 0.3).square().sum(dim=1, keepdim=True)  # highest at (0.3, 0.3)
        >>> model = NTKGPModel(X, Y, generator=g)
        >>> model.posterior(torch.rand(5, 3, 2).double()).mean.shape  # five batches of three points
        torch.Size([5, 3, 1])
        >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
        >>> acquisition = LogExpectedImprovement(model, best_f=Y.max())
        >>> candidate, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=4, raw_samples=64)
        >>> bool((candidate - 0.3).norm() < 0.1)
        True
    """

    likelihood = None  # FantasizeMixin checks it for a fixed-noise likelihood; here the model itself knows the noise
    _has_transformed_inputs = True  # the posterior always holds transformed inputs

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        *,
        module: nn.Module | Tuned | None = None,
        noise_var: str | float | Tensor | None = "tuned",
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | type | None = DEFAULT,
        starts: int = 2,
        steps: int = 60,
        hyper_prior: float | None = 1.0,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        checks.check_training_data(train_X, train_Y)
        noise = None if noise_var is None else data.known_noise(noise_var, train_Y)
        outcome_transform = Standardize(m=train_Y.shape[1]) if isinstance(outcome_transform, type) else outcome_transform
        with torch.no_grad():
            X = self.transform_inputs(train_X, input_transform)
            X, (Y, noise) = X.double(), data.transformed_targets(outcome_transform, X, train_Y, noise)
        tuned = data.tuned_for(module, X, Y, noise, generator, starts=starts, steps=steps, hyper_prior=hyper_prior)
        self._set(tuned.fit(X, Y), train_X.detach(), input_transform, outcome_transform, tuned)

    @classmethod
    def from_posterior(
        cls,
        posterior: Posterior,
        *,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
    ) -> "NTKGPModel":
        """Build a model from an existing posterior of any of the three kinds.

        ``Exact()`` handles all batches of a query in one call; the other methods take one call per batch (one in total when
        q·m = 1).

        Args:
            posterior: the result of ``ntkgp.fit``.
            input_transform: the transform applied to its inputs, with learned coefficients.
            outcome_transform: the transform applied to its targets, with learned coefficients.

        Example:
            >>> import torch, ntkgp
            >>> x = torch.linspace(0, 1, 8).double().unsqueeze(1)
            >>> posterior = ntkgp.fit(ntkgp.mlp(1, width=32).double(), x, torch.sin(6 * x), noise_var=0.01)
            >>> model = NTKGPModel.from_posterior(posterior)
            >>> torch.equal(model.posterior(x).mean, posterior.predict(x).mean)
            True
        """
        if not isinstance(posterior, Posterior):
            raise TypeError(f"posterior must come from ntkgp.fit, got {type(posterior).__name__}")
        X = posterior.problem.data.x
        original = X if input_transform is None else input_transform.eval().untransform(X)
        return cls._empty()._set(posterior, original, input_transform, outcome_transform)

    @classmethod
    def construct_inputs(cls, training_data: SupervisedDataset, **options: Any) -> dict[str, Any]:
        """Convert a BoTorch dataset to arguments; ``train_Yvar`` becomes `noise_var`."""
        inputs = super().construct_inputs(training_data=training_data, **options)
        return {"noise_var" if name == "train_Yvar" else name: value for name, value in inputs.items()}

    def posterior(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior | TransformedPosterior:
        """The joint posterior of the q points and m outputs of each batch; differentiable in X.

        Args:
            X: (*batch, q, d).
            output_indices: indices of the outputs; None for all.
            observation_noise: True adds the model's noise variance (its mean, if it differs between observations); a tensor
                that broadcasts to (*batch, q, m) is added unchanged, in squared units of the transformed outcomes.
            posterior_transform: as in BoTorch.
        """
        self.eval()
        if output_indices is not None:
            return self.subset_output(output_indices).posterior(X, None, observation_noise, posterior_transform)
        X = checks.checked_query(self, X)
        mean, covariance = joint(self.gp, X, self._outputs, self._seen)
        if (noise := checks.observation_noise_at(observation_noise, self._noise, mean)) is not None:
            covariance = covariance + torch.diag_embed(noise.flatten(-2))
        answer = gaussian(mean.to(X.dtype), covariance.to(X.dtype))
        checks.check_answer(answer)
        if self._outcome_transform is not None:
            answer = self._outcome_transform.untransform_posterior(answer, X=X)
            checks.check_answer(answer)
        return answer if posterior_transform is None else posterior_transform(answer, X=X)  # pyright: ignore[reportReturnType]

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> "NTKGPModel":
        """A new model that has also seen (X, Y), with the same hyper-parameters and transforms.

        Without batches and gradients this updates the exact posterior. Otherwise (fantasies; only some outputs) the new model
        stores the n' new points with their gradients and conditions every query on them. That makes a query cost n' more
        points per batch: meant for the few points of a look-ahead, not for many.

        Args:
            X: (*batch, n', d).
            Y: (*batch', n', m), in the units of train_Y; the batches broadcast.
            noise: noise variance that broadcasts to Y, in squared units of the transformed outcomes; None for the model's.
            **kwargs: ignored; BoTorch passes hints for GPyTorch's models.
        """
        self.eval()
        checks.check_observations(X, Y, self.train_inputs[0].shape[-1], self.num_outputs)
        points, targets, transform = self.transform_inputs(X).double(), Y.double(), self._outcome_transform
        if transform is not None:
            targets, _ = transform(targets, X=points)
        variance = checks.checked_noise(points, targets, self._noise if noise is None else noise, self)
        new = Observations(points, targets, variance, self._outputs)
        plain = points.ndim == targets.ndim == 2 >= variance.ndim and not (points.requires_grad or targets.requires_grad)
        everything = not self._seen and self._outputs == list(range(self.gp.problem.outputs))
        if plain and not len(points):
            return self._like()
        if plain and everything and isinstance(self.gp, ExactPosterior):
            assert self._original_train_inputs is not None
            original = torch.cat([self._original_train_inputs, X.detach().to(self._original_train_inputs)])
            known = noise is None and self.gp.problem.data.common_noise is not None
            gp = self.gp.update(points, targets, noise_var=None if known else variance.expand_as(targets))
            return self._like(gp=gp, original=original)
        return self._like(seen=(*self._seen, new))

    def fantasize(self, X: Tensor, *args: Any, **options: Any) -> "NTKGPModel":
        """A model that has also seen draws of its own posterior at X, (*batch, n', d); arguments as in ``FantasizeMixin``."""
        checks.check_points(X)
        return super().fantasize(X, *args, **options)

    def sample_paths(self, count: int = 1, *, generator: torch.Generator | None = None) -> GenericDeterministicModel:
        """Draw functions from the posterior as a deterministic model of batch shape (count,), for Thompson sampling.

        The draws are exact, differentiable, and can be evaluated anywhere and repeatedly. Maximise all of them with BoTorch's
        ``optimize_posterior_samples``, or a single one by ``optimize_acqf`` of its ``PosteriorMean``. Cost: 2·P·m operations
        per point and path for a network with P parameters.

        Args:
            count: number of functions.
            generator: source of the draws; None for the global one.

        Example:
            >>> import torch
            >>> from botorch.utils.sampling import optimize_posterior_samples
            >>> X = torch.rand(10, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            >>> paths = NTKGPModel(X, torch.sin(6 * X)).sample_paths(3)
            >>> torch.equal(paths(X), paths(X)), paths(X).shape
            (True, torch.Size([3, 10, 1]))
            >>> bounds = torch.tensor([[0.0], [1.0]]).double()
            >>> best, values = optimize_posterior_samples(paths, bounds, raw_samples=32, num_restarts=2)
            >>> best.shape
            torch.Size([3, 1])
        """
        if self._seen:
            raise NotImplementedError(
                "a model with fantasies, or conditioned on only some outputs, has no sample paths; draw them from the model "
                "before conditioning"
            )
        return paths_of(self, self.gp.sample(count, generator=generator), count, self._outputs)

    def subset_output(self, idcs: list[int]) -> "NTKGPModel":
        """The same model restricted to some of its outputs, in the given order."""
        chosen = checks.chosen_outputs(idcs, self.num_outputs)
        model = self._like(outputs=[self._outputs[k] for k in chosen])
        if (transform := self._outcome_transform) is not None:
            model.outcome_transform = transform.subset_output(chosen)
        return model

    @property
    def num_outputs(self) -> int:
        """The number m of outputs."""
        return len(self._outputs)

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of the fantasies; empty if there are none."""
        return batch_shape(self._seen)

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """The transformed training points of the posterior."""
        return (self.gp.problem.data.x,)

    @property
    def _outcome_transform(self) -> OutcomeTransform | None:
        return getattr(self, "outcome_transform", None)  # BoTorch checks whether the attribute exists

    @property
    def _noise(self) -> Float[Tensor, "1 m"]:
        """The noise variance of a new observation."""
        return data.mean_noise(self.gp)[:, self._outputs]

    @classmethod
    def _empty(cls) -> "NTKGPModel":
        """A model without attributes, made without the constructor and its tuning."""
        model = cls.__new__(cls)
        Model.__init__(model)
        return model

    def _set(
        self,
        gp: Posterior,
        original: Tensor,
        input_transform: InputTransform | None,
        outcome_transform: OutcomeTransform | None,
        tuned: Tuned | None = None,
        outputs: list[int] | None = None,
        seen: tuple[Observations, ...] = (),
    ) -> "NTKGPModel":
        """Set all attributes; `outputs` None means all outputs."""
        self.gp, self.tuned, self._seen, self._original_train_inputs = gp, tuned, seen, original
        self._outputs = list(range(gp.problem.outputs)) if outputs is None else outputs
        if input_transform is not None:
            self.input_transform = input_transform
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform
        self.eval()
        return self

    def _like(self, **changes: Any) -> "NTKGPModel":
        """A copy of the model with some attributes replaced."""
        same = {
            "gp": self.gp, "original": self._original_train_inputs, "input_transform": getattr(self, "input_transform", None),
            "outcome_transform": self._outcome_transform, "tuned": self.tuned, "outputs": self._outputs, "seen": self._seen,
        }  # fmt: skip
        return self._empty()._set(**{**same, **changes})

    def _revert_to_original_inputs(self) -> None:
        """Do nothing in training mode: the points of the posterior never change."""
