"""The shared list of regression problems every fast path is checked on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from tests.support import modules, oracle


@dataclass(frozen=True)
class Case:
    """A network, data, and points to ask about. `module()` builds the same network every time."""

    name: str
    build: Callable[[], nn.Module]
    x: Tensor
    y: Tensor
    query: Tensor
    noise_var: float | Tensor = 0.01
    prior_var: float | Mapping[str, float] = 1.0
    prior_mean: Callable[[Tensor], Tensor] | None = None
    dtype: torch.dtype = torch.float64

    def module(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return self.build().to(self.dtype).eval()

    @property
    def outputs(self) -> int:
        return 1 if self.y.ndim == 1 else self.y.shape[1]

    def fit(
        self, method: ntkgp.Exact | ntkgp.LowRank | ntkgp.TrainedNetworks | None = None, **options: object
    ) -> ntkgp.posterior.Posterior:
        return ntkgp.fit(
            self.module(), self.x, self.y, noise_var=self.noise_var, method=method, prior_mean=self.prior_mean,
            prior_var=self.prior_var, **options,  # pyright: ignore[reportArgumentType]
        )  # fmt: skip


def reference(case: Case) -> oracle.Oracle:
    """The oracle's view of a case."""
    return _reference(case.name)


@cache
def _reference(name: str) -> oracle.Oracle:
    case = next(c for c in CASES if c.name == name)
    module = case.module()
    means = None
    if case.prior_mean is ntkgp.network_mean:
        means = (oracle.outputs(module, case.x), oracle.outputs(module, case.query))
    elif case.prior_mean is not None:
        means = (case.prior_mean(case.x.double()), case.prior_mean(case.query.double()))
    return oracle.pose(module, case.x, case.y, case.query, case.noise_var, case.prior_var, means)


def _normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _tokens(points: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 7, (points, 3), generator=torch.Generator().manual_seed(seed))


def _positive(*shape: int) -> Tensor:
    return 0.01 + 0.2 * torch.rand(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def _mlp(in_features: int = 2, out_features: int = 1, width: int = 16, depth: int = 2, scaling: str = "fan_in") -> nn.Module:
    return ntkgp.mlp(in_features, out_features, width, depth, scaling=scaling, generator=torch.Generator().manual_seed(7))


def _trigonometric() -> nn.Module:
    return nn.Sequential(ntkgp.networks.TrigonometricInputs(-4.0, 4.0), _mlp(4))


def _sine(x: Tensor) -> Tensor:
    return torch.sin(2 * x).sum(dim=-1)


def _case(name: str, build: Callable[[], nn.Module], C: int | None = None, **options: object) -> Case:
    """12 points in the plane and 9 to ask about: on the data, near it and far from it."""
    dtype = options.get("dtype", torch.float64)
    assert isinstance(dtype, torch.dtype)
    x = _normal(12, 2, dtype=dtype)
    query = torch.cat([x[:3], _normal(6, 2, seed=1, dtype=dtype) * 2])
    y = _sine(x) if C is None else torch.stack([_sine(x + c) for c in range(C)], dim=1)
    settings: dict[str, object] = {"x": x, "y": y, "query": query, **options}
    return Case(name, build, **settings)  # pyright: ignore[reportArgumentType]


def _tokens_case(name: str, build: Callable[[], nn.Module], C: int | None = None) -> Case:
    return _case(name, build, x=_tokens(10), y=_normal(10) if C is None else _normal(10, C), query=_tokens(8, seed=1))


def _image_case(name: str, build: Callable[[], nn.Module], shape: tuple[int, ...]) -> Case:
    return _case(name, build, x=_normal(6, *shape), y=_normal(6, 2), query=_normal(5, *shape, seed=1))


def _sequence_case(name: str, width: int, shape: tuple[int, int] = (3, 3), time_first: bool = False) -> Case:
    """Sequences of shape (length, features). Layers much wider than long take another road through the kernel."""
    build = partial(modules.Positions, shape[1], width, time_first)
    return _case(name, build, x=_normal(6, *shape), y=_normal(6, 2), query=_normal(5, *shape, seed=1))


_repeated = _normal(12, 2)[[0, 0, 0, 1, 2, 3, 3, 4, 5, 5, 6, 7]]

CASES = [
    _case("paper mlp", _mlp),
    _case("paper mlp, own-width scaling", partial(_mlp, scaling="own_width")),
    _case("trigonometric inputs", _trigonometric),
    _case("two outputs", partial(_mlp, 2, 2), C=2),
    _case("one output as a column", _mlp, C=1),
    _case("more points than parameters", partial(_mlp, 2, 1, 2, 1), x=_normal(40, 2), y=_sine(_normal(40, 2))),
    _case("duplicated points", _mlp, x=_repeated, y=_sine(_repeated) + 0.1 * _normal(12, seed=2)),
    _case("tiny noise", _mlp, noise_var=1e-8),
    _case("tiny noise, duplicated points", _mlp, x=_repeated, y=_sine(_repeated), noise_var=1e-8),
    _case("huge noise", _mlp, noise_var=1e6),
    _case("noise per point", _mlp, noise_var=_positive(12)),
    _case("noise per point, two outputs", partial(_mlp, 2, 2), C=2, noise_var=_positive(12)),
    _case("noise per output", partial(_mlp, 2, 2), C=2, noise_var=_positive(12, 2)),
    _case("float32", _mlp, dtype=torch.float32),
    _case("float32, two outputs", partial(modules.standard, 2), C=2, dtype=torch.float32),
    _case("standard parametrisation", modules.standard),
    _case("layer norm", modules.layer_norm),
    _case("batch norm in eval mode", modules.batch_norm),
    _case("in-place activations", modules.in_place),
    _case("output (N,)", modules.Scalar),
    _case("output squeezed", modules.Squeezed),
    _case("layer used twice", modules.UsedTwice),
    _case("shared weight", modules.SharedWeight, C=2),
    _case("weight used directly", modules.Direct, C=2),
    _case("frozen parameters", modules.frozen),
    _case("prior variance", _mlp, prior_var=2.5),
    _case("prior variance per layer", modules.standard, prior_var={"0": 0.5, "2": 2.0, "4.weight": 3.0, "": 0.1}),
    _case("network as prior mean", _mlp, prior_mean=ntkgp.network_mean),
    _case("function as prior mean", _mlp, prior_mean=lambda x: x.square().sum(dim=1)),
    _case("cnn", modules.cnn, x=_normal(6, 1, 6, 6), y=_normal(6, 2), query=_normal(5, 1, 6, 6, seed=1)),
    _image_case("strided cnn", modules.strided_cnn, (1, 8, 8)),
    _image_case("circular conv1d", modules.circular, (2, 9)),
    _image_case("group norm", modules.group_norm, (2, 4, 4)),
    _image_case("grouped convolution", modules.grouped, (2, 4, 4)),
    _image_case("recurrent", modules.Recurrent, (4, 3)),
    _tokens_case("padded embedding", modules.PaddedEmbedding, C=2),
    _tokens_case("attention", modules.Attention),
    _tokens_case("transformer layer", modules.Encoder, C=2),
    _tokens_case("tied embedding", modules.TiedEmbedding, C=2),
    _sequence_case("narrow sequence layer", width=2),
    _sequence_case("wide sequence layer", width=40, shape=(2, 15)),
    _sequence_case("time-first sequences", width=4, time_first=True),
]  # fmt: skip


# One case per network and float64: for what does not depend on noise, targets or prior mean.
SAME_NETWORK = ("noise", "as a column", "prior mean", "float32")
NETWORKS = [case for case in CASES if not any(words in case.name for words in SAME_NETWORK)]

# Float64 and noise above rounding: for comparisons to many digits.
DOUBLE = [case for case in CASES if case.dtype == torch.float64 and "tiny" not in case.name]


def rank_of(case: Case) -> int:
    """The largest rank that J(x) can have."""
    return min(len(case.x) * case.outputs, sum(p.numel() for p in case.module().parameters() if p.requires_grad))


def by_name(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def every(cases: list[Case] | None = None) -> pytest.MarkDecorator:
    """Parametrise a test over cases (all of them when None), with readable ids."""
    return pytest.mark.parametrize("case", CASES if cases is None else cases, ids=lambda case: case.name)
