"""The pictures show the numbers they were given."""

from typing import Any

import pytest
import torch
from torch import Tensor

import ntkgp
from ntkgp import plots
from ntkgp.apps.plots import spectrum
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.posterior.trained.posterior import TrainedPosterior
from ntkgp.posterior.trained.training.networks import NetworkPredictors


@pytest.fixture(scope="module")
def line() -> tuple[torch.nn.Module, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).unsqueeze(1)
    net = ntkgp.mlp(1, width=32, generator=g).double()
    return net, x, torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(12, generator=g, dtype=torch.float64)


@pytest.fixture(scope="module")
def plane() -> tuple[ntkgp.posterior.Posterior, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(15, 2, generator=g)
    net = ntkgp.mlp(2, out_features=2, width=32, generator=g)
    return ntkgp.fit(net, x, torch.stack([x[:, 0], -x[:, 1]], dim=1), noise_var=0.1), x


def labelled(ax: Any, label: str) -> Any:
    """What was drawn under that label."""
    handles, labels = ax.get_legend_handles_labels()
    return handles[labels.index(label)]


def edges(band: Any) -> tuple[float, float]:
    """Lowest and highest value of a filled band."""
    heights = band.get_paths()[0].vertices[:, 1]
    return heights.min(), heights.max()


def close(drawn, expected: Tensor) -> bool:
    return torch.allclose(torch.as_tensor(drawn).double(), expected.double(), rtol=1e-6, atol=1e-12)


class TestPosterior1d:
    x = torch.linspace(0, 1, 5)

    def test_the_present_call_draws_what_it_drew(self):
        ax = plots.posterior_1d(plots.figure(4, 3).subplots(), self.x, self.x, torch.ones(5), data=(self.x, -self.x))
        assert ax.get_legend_handles_labels()[1] == ["±2 std", "±1 std", "mean", "data"]
        assert close(labelled(ax, "mean").get_ydata(), self.x)
        assert close(labelled(ax, "data").get_ydata(), -self.x)
        assert edges(labelled(ax, "±2 std")) == (-2, 3)
        assert edges(labelled(ax, "±1 std")) == (-1, 2)

    def test_the_noise_is_added_on_either_side(self):
        ax = plots.posterior_1d(None, self.x, torch.zeros(5), torch.ones(5), total_std=torch.full((5,), 3.0))
        assert edges(labelled(ax, "±2 std with noise")) == (2, 6)
        assert edges(ax.collections[1]) == (-6, -2)

    def test_the_bracket_is_two_standard_deviations_of_either_bound(self):
        bounds = torch.full((5,), 0.25), torch.full((5,), 4.0)
        ax = plots.posterior_1d(None, self.x, self.x, torch.ones(5), bracket=bounds)
        assert close(labelled(ax, "lower").get_ydata(), self.x + 1)
        assert close(labelled(ax, "upper").get_ydata(), self.x + 4)
        assert len(ax.lines) == 5  # two of each, and the mean

    def test_every_sample_is_a_line_with_one_label(self):
        samples = torch.randn(3, 5)
        ax = plots.posterior_1d(None, self.x, self.x, torch.ones(5), samples=samples)
        assert all(close(line.get_ydata(), sample) for line, sample in zip(ax.lines, samples, strict=False))
        assert ax.get_legend_handles_labels()[1].count("samples") == 1


class TestSpectrum:
    def test_eigenvalues_are_drawn_in_units_of_the_noise(self):
        ax = plots.spectrum(torch.tensor([0.1, 4.0, 1.0]), noise_var=0.5, rank=1)
        assert close(labelled(ax, "eigenvalue ÷ noise").get_ydata(), torch.tensor([8.0, 2.0, 0.2]))
        assert close(labelled(ax, "eigenvalue ÷ noise").get_xdata(), torch.tensor([1, 2, 3]))
        assert close(labelled(ax, "noise").get_ydata(), torch.ones(2))

    def test_the_bracket_is_that_of_the_first_eigenvalue_left_out(self):
        ax = plots.spectrum(torch.tensor([4.0, 1.0, 0.1]), noise_var=0.25, rank=1)
        kept = labelled(ax, "K = 1: bracket 0.8")  # 4/(4 + 1)
        assert kept.get_x() + kept.get_width() == pytest.approx(1.5)
        labelled(plots.spectrum(torch.tensor([4.0, 1.0]), noise_var=0.25, rank=2), "K = 2: bracket 0")

    def test_no_bracket_of_a_converged_head_is_wider(self, line):
        net, x, y = line
        posterior = ntkgp.fit(net, x, y, noise_var=0.01, method=ntkgp.LowRank(rank=3, svd=ntkgp.linalg.DenseSVD()))
        p = posterior.predict(torch.linspace(-2, 2, 50, dtype=torch.float64).unsqueeze(1))
        values = torch.linalg.eigvalsh(ntkgp.kernel(net, x)).flip(0) / 0.01
        claimed = values[3] / (values[3] + 1)
        assert ((p.upper - p.variance) / p.upper).max() <= claimed
        labelled(plots.spectrum(posterior), f"K = 3: bracket {float(claimed):.2g}")

    def test_every_kind_of_posterior_shows_the_same_spectrum(self, line):
        net, x, y = line
        expected = torch.linalg.eigvalsh(ntkgp.kernel(net, x)).flip(0) / 0.05
        for method in (ntkgp.Exact(), ntkgp.LowRank(rank=4), ntkgp.TrainedNetworks(rank=4)):
            ax = plots.spectrum(ntkgp.fit(net, x, y, noise_var=0.05, method=method))
            drawn = torch.as_tensor(labelled(ax, "eigenvalue ÷ noise").get_ydata())
            assert torch.allclose(drawn, expected[: len(drawn)], rtol=1e-5, atol=1e-8 * float(expected[0]))

    def test_many_points_show_what_is_known(self, line, monkeypatch: pytest.MonkeyPatch):
        net, x, y = line
        posterior = ntkgp.fit(net, x, y, noise_var=0.05, method=ntkgp.LowRank(rank=4))
        assert isinstance(posterior, LowRankPosterior)
        monkeypatch.setattr(spectrum, "MAX_KERNEL_ROWS", 5)
        ax = plots.spectrum(posterior)
        assert close(labelled(ax, "eigenvalue ÷ noise").get_ydata(), posterior.head.values)
        assert labelled(ax, "the others lie below").get_ydata()[0] == posterior.head.tail

    def test_what_is_wrong_is_said(self, line):
        net, x, y = line
        posterior = ntkgp.fit(net, x, y, noise_var=0.05)
        with pytest.raises(ValueError, match="noise_var is missing"):
            plots.spectrum(torch.ones(3))
        with pytest.raises(ValueError, match="knows its noise"):
            plots.spectrum(posterior, noise_var=0.05)
        with pytest.raises(ValueError, match="rank must be 1 to 12"):
            plots.spectrum(posterior, rank=13)
        with pytest.raises(ValueError, match="positive eigenvalue"):
            plots.spectrum(torch.zeros(3), noise_var=1.0)


class TestLearningCurves:
    def test_losses_are_relative_to_the_first(self, line):
        net, x, y = line
        posterior = ntkgp.fit(net, x, y, noise_var=0.05, method=ntkgp.TrainedNetworks(rank=3, tail=2))
        assert isinstance(posterior, TrainedPosterior)
        assert isinstance(posterior.predictors, NetworkPredictors)
        trained = posterior.predictors.trained
        ax = plots.learning_curves(posterior)
        assert len(ax.lines) == 6
        assert sorted(ax.get_legend_handles_labels()[1]) == ["mean", "random targets", "singular vectors"]
        mean = labelled(ax, "mean")
        rows = len(mean.get_ydata())
        assert close(mean.get_ydata(), torch.tensor([row[0] / trained.losses[0][0] for row in trained.losses[:rows]]))
        assert mean.get_xdata()[0] == 1
        assert mean.get_xdata()[-1] <= trained.steps[0] < mean.get_xdata()[-1] + 10

    def test_only_trained_networks_have_them(self, line):
        net, x, y = line
        with pytest.raises(TypeError, match="TrainedNetworks"):
            plots.learning_curves(ntkgp.fit(net, x, y, noise_var=0.05))


class TestUncertaintyMap:
    @pytest.mark.parametrize("show", ["std", "total_std", "mean"])
    def test_contours_span_the_values_at_the_grid(self, plane, show: str):
        posterior, _ = plane
        ax = plots.uncertainty_map(posterior, (0.0, 2.0), (-1.0, 1.0), show=show, output=1, resolution=7)
        first, second = torch.linspace(0, 2, 7), torch.linspace(-1, 1, 7)
        values = getattr(posterior.predict(torch.cartesian_prod(first, second)), show)[:, 1]
        drawn: Any = ax.collections[0]
        assert drawn.zmin == pytest.approx(float(values.min()), rel=1e-5)
        assert drawn.zmax == pytest.approx(float(values.max()), rel=1e-5)
        assert (ax.get_xlim(), ax.get_ylim()) == ((0, 2), (-1, 1))
        assert ax.figure.axes[1].get_ylabel() == show.replace("_", " ")

    def test_the_first_input_goes_to_the_right(self):
        x = torch.tensor([[0.0, 0.5], [1.0, 0.5]])
        posterior = ntkgp.fit(torch.nn.Linear(2, 1), x, x[:, 0], noise_var=0.01)
        ax = plots.uncertainty_map(posterior, (-3.0, 3.0), (0.0, 1.0), show="mean", resolution=9)
        bands: list[Any] = [path.vertices for path in ax.collections[0].get_paths() if len(path.vertices)]  # pyright: ignore
        assert bands[0][:, 0].mean() < -1
        assert bands[-1][:, 0].mean() > 1

    def test_data_are_points_on_top(self, plane):
        posterior, x = plane
        ax = plots.uncertainty_map(posterior, (0.0, 1.0), (0.0, 1.0), data=x, resolution=5)
        assert close(ax.lines[0].get_xdata(), x[:, 0])
        assert close(ax.lines[0].get_ydata(), x[:, 1])

    def test_only_what_a_prediction_has_can_be_shown(self, plane):
        with pytest.raises(ValueError, match="show must be"):
            plots.uncertainty_map(plane[0], (0.0, 1.0), (0.0, 1.0), show="lower")
