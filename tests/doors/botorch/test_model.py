"""The BoTorch model against GPyTorch with the same kernel, and against itself in other shapes."""

import copy
import re
from pathlib import Path

import pytest

pytest.importorskip("botorch")  # which needs Python 3.11


import gpytorch
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.transforms import Normalize, Standardize
from botorch.models.transforms.outcome import Log
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset
from gpytorch.distributions import MultitaskMultivariateNormal
from torch import Tensor, nn

import ntkgp
from ntkgp.botorch import NTKGPModel, default_network
from ntkgp.posterior.exact.posterior import ExactPosterior
from tests.doors.botorch.models import NOISE, built, covariance, fitted, hill, net, uniform, wrapped

# GPyTorch's jitter when two of the points it draws at are nearly the same, as with its own models.
pytestmark = pytest.mark.filterwarnings("ignore:A not p.d.")


def agree(a: NTKGPModel, b: NTKGPModel, X: Tensor, tolerance: float) -> None:
    p, r = a.posterior(X), b.posterior(X)
    torch.testing.assert_close(p.mean, r.mean, rtol=0, atol=tolerance)
    torch.testing.assert_close(covariance(a, X), covariance(b, X), rtol=0, atol=tolerance)


class TangentKernel(gpytorch.kernels.Kernel):
    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:  # pyright: ignore
        matrix = ntkgp.kernel(self.module, x1, x2)
        return matrix.diagonal() if diag else matrix


def test_gpytorch_with_the_same_kernel_gives_the_same_posterior():
    X = uniform(15, 2)
    Y, query = torch.sin(5 * X[:, :1]), uniform(6, 2, seed=1)

    class Referee(gpytorch.models.ExactGP):
        def __init__(self):
            likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
            likelihood.noise = torch.tensor(NOISE)
            super().__init__(X, Y[:, 0], likelihood)
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), TangentKernel(net())

        def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))  # pyright: ignore

    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        truth = Referee().eval()(query)
        model = NTKGPModel.from_posterior(ntkgp.fit(net(), X, Y, noise_var=NOISE))
        assert isinstance(truth, gpytorch.distributions.MultivariateNormal)
        torch.testing.assert_close(model.posterior(query).mean[:, 0], truth.mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(covariance(model, query), truth.covariance_matrix, rtol=0, atol=1e-6)


@pytest.mark.parametrize("outputs", [1, 2])
def test_gradients_by_the_query_agree_with_finite_differences(outputs: int):
    X = uniform(8, 2)
    Y = torch.cat([hill(X), X[:, :1] ** 3], dim=1)[:, :outputs]
    model = built(3 * X, 10 * Y, input_transform=Normalize(2), module=net(2, outputs))

    def moments(query: Tensor) -> tuple[Tensor, Tensor]:
        return model.posterior(query).mean, covariance(model, query)

    assert torch.autograd.gradcheck(moments, (3 * uniform(2, 2, 2, seed=1)).requires_grad_())


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize(("batch", "q"), [((40,), 3), ((3, 2), 1), ((), 5), ((200,), 1), ((1,), 70)])
def test_batches_equal_one_group_at_a_time(outputs: int, batch: tuple[int, ...], q: int):
    model = wrapped(outputs=outputs)
    X = uniform(*batch, q, 2, seed=1)
    p = model.posterior(X)
    assert p.mean.shape == p.variance.shape == (*batch, q, outputs)
    together = covariance(model, X).reshape(-1, q * outputs, q * outputs)
    for k in range(0, len(together), max(1, len(together) // 8)):
        group = X.reshape(-1, q, 2)[k]
        torch.testing.assert_close(together[k], model.gp.covariance(group), rtol=0, atol=1e-12)
        torch.testing.assert_close(p.mean.reshape(-1, q, outputs)[k], model.gp.predict(group).mean, rtol=0, atol=1e-12)


def test_a_posterior_of_low_rank_works_the_same():
    low = NTKGPModel.from_posterior(fitted(method=ntkgp.LowRank(rank=10)))
    for shape in ((4, 1, 2), (3, 2, 2)):
        agree(low, wrapped(), uniform(*shape, seed=1), 1e-5)
    X, Y = uniform(3, 2, seed=2), uniform(3, 1)
    agree(low.condition_on_observations(X, Y), wrapped().condition_on_observations(X, Y), uniform(4, 2, seed=1), 1e-5)


def test_samples_are_point_major():
    """The joint distribution BoTorch draws from has the covariance of the posterior, outputs beside each other."""
    model, X = wrapped(outputs=2), uniform(3, 2, seed=1)
    p = model.posterior(X)
    assert isinstance(p, GPyTorchPosterior)
    assert isinstance(p.distribution, MultitaskMultivariateNormal)
    draws = p.rsample(torch.Size([20000])).flatten(1)
    torch.testing.assert_close(draws.T.cov(), model.gp.covariance(X), rtol=0, atol=0.02)


@pytest.mark.parametrize("outputs", [1, 2])
def test_conditioning_equals_a_fresh_model(outputs: int):
    X = uniform(12, 2)
    Y = torch.cat([hill(X), torch.sin(3 * X[:, :1])], dim=1)[:, :outputs]
    model = built(X[:8], Y[:8], module=net(2, outputs), input_transform=Normalize(2), outcome_transform=Standardize(outputs))
    more = model.condition_on_observations(X[8:], Y[8:])
    assert isinstance(more.gp, ExactPosterior)
    assert len(more.train_inputs[0]) == len(more._original_train_inputs) == 12  # pyright: ignore
    targets, _ = model.outcome_transform(Y)
    fresh = NTKGPModel.from_posterior(model.tuned.fit(model.transform_inputs(X), targets))  # pyright: ignore
    fresh.input_transform, fresh.outcome_transform = model.input_transform, model.outcome_transform
    query = uniform(5, 3, 2, seed=1)
    agree(more, fresh, query, 1e-8)
    assert len(model.train_inputs[0]) == 8
    # Fantasies come to the same by another way: two models at once, then one point after the other.
    apart = model.condition_on_observations(X[8:].expand(2, 4, 2), torch.stack([Y[8:], Y[8:] + 1]))
    assert apart.batch_shape == (2,)
    one_by_one = model
    for x, y in zip(X[8:], Y[8:], strict=True):
        one_by_one = one_by_one.condition_on_observations(x.expand(2, 1, 2), y.expand(2, 1, outputs))
    for found in (covariance(apart, query[:, None])[:, 0], covariance(one_by_one, query[:, None])[:, 1]):
        torch.testing.assert_close(found, covariance(fresh, query), rtol=0, atol=1e-8)
    for found in (apart.posterior(query[:, None]).mean[:, 0], one_by_one.posterior(query[:, None]).mean[:, 1]):
        torch.testing.assert_close(found, fresh.posterior(query).mean, rtol=0, atol=1e-8)


def test_conditioning_on_some_outputs():
    """Outputs are correlated: what is seen of one moves the other, and stays seen when the model is narrowed."""
    model, X, query = wrapped(outputs=2), uniform(2, 2, seed=2), uniform(4, 2, seed=1)
    both = model.condition_on_observations(X, torch.ones(2, 2).double(), noise=torch.tensor([[NOISE, 1e9]]))
    first = model.subset_output([0]).condition_on_observations(X, torch.ones(2, 1).double())
    torch.testing.assert_close(first.posterior(query).mean, both.posterior(query, output_indices=[0]).mean, rtol=0, atol=1e-7)
    batched = model.condition_on_observations(X.unsqueeze(0), torch.ones(1, 2, 2).double())
    p = batched.posterior(query)
    torch.testing.assert_close(batched.subset_output([1]).posterior(query).mean, p.mean[..., [1]], rtol=0, atol=1e-12)


def test_fantasies():
    model, X = built(), uniform(5, 2, 2, seed=1).requires_grad_()
    fantasies = model.fantasize(X, SobolQMCNormalSampler(torch.Size([3]), seed=0))
    assert fantasies.batch_shape == (3, 5)
    p = fantasies.posterior(uniform(1, 2, seed=2))
    assert p.mean.shape == (3, 5, 1, 1)
    assert bool((p.variance < model.posterior(uniform(1, 2, seed=2)).variance).all())
    (by_points,) = torch.autograd.grad(p.mean.sum(), X)
    assert by_points.abs().sum() > 0
    again = fantasies.fantasize(X[:, :1].detach(), SobolQMCNormalSampler(torch.Size([2]), seed=0))
    assert again.batch_shape == (2, 3, 5)
    with pytest.raises(NotImplementedError, match="draw them from the model before conditioning"):
        fantasies.sample_paths()


def test_outputs_can_be_chosen():
    X = uniform(10, 2)
    model = built(X, torch.cat([hill(X), 5 * X[:, :1], X.sum(1, keepdim=True)], dim=1), module=net(2, 3))
    query = uniform(4, 2, 2, seed=1)
    whole = model.posterior(query)
    for some in ([0], [2, 0], [-1]):
        narrow = model.subset_output(some)
        assert narrow.num_outputs == len(some)
        for p in (narrow.posterior(query), model.posterior(query, output_indices=some)):
            torch.testing.assert_close(p.mean, whole.mean[..., some])
            torch.testing.assert_close(p.variance, whole.variance[..., some])
    assert model.num_outputs == 3
    weighted = model.posterior(query, posterior_transform=ScalarizedPosteriorTransform(torch.tensor([1.0, 2.0, 0.0]).double()))
    torch.testing.assert_close(weighted.mean[..., 0], whole.mean @ torch.tensor([1.0, 2.0, 0.0]).double())


def test_transforms_there_and_back():
    X = uniform(10, 2)
    Y, query = torch.sin(4 * X[:, :1]), uniform(6, 2, seed=1)
    bounds = torch.tensor([[-5.0, 10.0], [5.0, 30.0]]).double()
    raw = bounds[0] + (bounds[1] - bounds[0]) * X
    tuned = built(X, (Y - Y.mean()) / Y.std(), outcome_transform=None).tuned
    plain = built(X, (Y - Y.mean()) / Y.std(), module=tuned, outcome_transform=None).posterior(query)
    model = built(raw, 3 + 100 * Y, module=tuned, input_transform=Normalize(2, bounds=bounds))
    p = model.posterior(bounds[0] + (bounds[1] - bounds[0]) * query)
    torch.testing.assert_close(p.mean, 3 + 100 * (Y.mean() + Y.std() * plain.mean))
    torch.testing.assert_close(p.variance, (100 * Y.std()) ** 2 * plain.variance)
    torch.testing.assert_close(model.train_inputs[0], X)
    torch.testing.assert_close(model._original_train_inputs, raw)
    model.train()
    assert torch.equal(model.posterior(raw).mean, model.eval().posterior(raw).mean)
    again = NTKGPModel.from_posterior(
        model.gp, input_transform=model.input_transform, outcome_transform=model.outcome_transform
    )
    agree(again, model, raw, 1e-12)
    torch.testing.assert_close(again._original_train_inputs, raw)


def test_an_outcome_transform_that_is_not_linear():
    X = uniform(10, 2)
    model = built(X, hill(X).exp(), outcome_transform=Log(), module=net())
    p = model.posterior(X, observation_noise=False)
    assert bool((p.rsample(torch.Size([4])) > 0).all())
    assert bool((model.sample_paths(2)(X) > 0).all())


def test_observation_noise():
    X, query = uniform(10, 2), uniform(3, 2, seed=1)
    for noise, mean in ((NOISE, NOISE), (torch.linspace(1, 2, 10).double().unsqueeze(1), 1.5)):
        model = built(X, module=net(), noise_var=noise, outcome_transform=None)
        plain = covariance(model, query)
        torch.testing.assert_close(covariance(model, query, observation_noise=True) - plain, mean * torch.eye(3).double())
        given = torch.tensor([[1.0], [2.0], [3.0]]).double()
        extra = covariance(model, query, observation_noise=given) - plain
        torch.testing.assert_close(extra, given[:, 0].diag())
    scaled = built(X, 10 * hill(X), module=net(), noise_var=NOISE)  # in the units of train_Y, whatever the transform
    extra = scaled.posterior(query, observation_noise=True).variance - scaled.posterior(query).variance
    torch.testing.assert_close(extra, torch.full_like(extra, NOISE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_answers_come_in_the_dtype_of_the_query(dtype: torch.dtype):
    X = uniform(10, 2).to(dtype)
    model = built(X)
    p = model.posterior(X[:3])
    assert p.mean.dtype == p.variance.dtype == p.rsample().dtype == dtype
    assert model.sample_paths(2)(X).dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(p.mean.double(), model.posterior(X[:3].double()).mean, rtol=0, atol=tolerance)


def test_hyper_parameters_can_be_kept():
    X = uniform(10, 2)
    model = built(X)
    again = NTKGPModel(X, hill(X), module=model.tuned)
    assert again.tuned is model.tuned
    agree(again, model, uniform(4, 2, seed=1), 1e-12)
    told = NTKGPModel(X, hill(X), module=model.tuned, noise_var=1.0)
    assert bool((told.posterior(X).variance > model.posterior(X).variance).all())


def test_the_default_network_learns_which_inputs_matter():
    X = uniform(40, 3)
    model = NTKGPModel(X, torch.sin(5 * X[:, :1]), generator=torch.Generator().manual_seed(0))
    query = uniform(50, 3, seed=1)
    p = model.posterior(query)
    assert (p.mean - torch.sin(5 * query[:, :1])).abs().mean() < 0.05
    assert not any(isinstance(part, NTKGPModel) for part in default_network(3).modules())


def test_a_module_of_ones_own_stays_as_it_is():
    module = net()
    before = copy.deepcopy(module.state_dict())
    model = built(module=module)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    agree(copy.deepcopy(model), model, uniform(3, 2, seed=1), 0.0)


def test_datasets():
    X = uniform(10, 2)
    names = {"feature_names": ["a", "b"], "outcome_names": ["y"]}
    known = SupervisedDataset(X, hill(X), Yvar=torch.full_like(hill(X), NOISE), **names)  # pyright: ignore[reportArgumentType]
    assert set(NTKGPModel.construct_inputs(known)) == {"train_X", "train_Y", "noise_var"}
    built(X, **{k: v for k, v in NTKGPModel.construct_inputs(known).items() if k == "noise_var"}, module=net())


def test_errors_say_what_to_do():
    X = uniform(10, 2)
    with pytest.raises(ValueError, match=r"train_Y\.unsqueeze\(-1\)"):
        NTKGPModel(X, hill(X)[:, 0])
    with pytest.raises(TypeError, match="train_X"):
        NTKGPModel(X.numpy(), hill(X))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="must be 'tuned'"):
        built(X, noise_var="inferred")
    with pytest.raises(ValueError, match="positive and finite"):
        built(X, noise_var=0.0)
    with pytest.raises(TypeError, match="posterior"):
        NTKGPModel.from_posterior(net())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"Y \(\.\.\., n, 1\)"):
        wrapped().condition_on_observations(X[:3], torch.ones(3, 2).double())
    with pytest.raises(ValueError, match="as in fit"):
        wrapped().posterior(uniform(4, 3))
    with pytest.warns(InputDataWarning, match="unit cube"):
        built(10 * X)


def test_only_the_adaptor_imports_botorch():
    """And nothing but its door imports the adaptor: the layers of pyproject.toml see to that."""
    root = Path(ntkgp.__file__).parent
    users = {
        path.parent.relative_to(root).as_posix() for path in root.rglob("*.py")
        if re.search(r"^\s*(from|import) (botorch|gpytorch)", path.read_text(), re.MULTILINE)
    }  # fmt: skip
    assert users == {"apps/botorch"}
