"""The epistemic std of one trained network by this library and by others, on the same weights and data.

The network is 4-64-64-1 (tanh), trained briefly; prior precision 1, known noise, float64. Each method runs in a process of
its own: time of fit and queries (CPU time of one thread), peak memory, and the relative error of the std against the exact
NTK-GP posterior. Others are optional: ``pip install gpytorch scikit-learn laplace-torch`` (laplace-torch 0.3 also wants
curvlinops-for-pytorch, backpack-for-pytorch, unfoldNd, asdfghjkl, torchmetrics, einops, einconv, opt_einsum). A missing one's
row says so.

GPyTorch and scikit-learn have no NTK of a given network: they are given ours as a kernel function, so that their answer is
the same posterior and their time is that of their own algebra plus the same kernel.

python -m benchmarks.speed.rivals
python -m benchmarks.speed.rivals --points 200 --queries 50
"""

# The others' own types are loose, and they may not be installed.
# pyright: reportMissingImports=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportIncompatibleMethodOverride=false
import argparse
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ntkgp
from benchmarks.measure import Peak, clock_of, isolated
from benchmarks.methods import laplace_torch
from benchmarks.store import save

NOISE = 0.1
PACKAGES = ("gpytorch", "scikit-learn", "laplace-torch", "curvlinops-for-pytorch", "backpack-for-pytorch")
Case = tuple[nn.Module, Tensor, Tensor, Tensor]  # the network, x, y, queries


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).double()


def problem(points: int, queries: int, steps: int = 300) -> Case:
    """Data, and a network trained on it for a while."""
    torch.manual_seed(0)
    x, new = torch.randn(points, 4).double(), 1.5 * torch.randn(queries, 4).double()
    y = torch.sin(2 * x[:, 0]) * x[:, 1] + x[:, 2].abs() + NOISE * torch.randn(points).double()
    net = network()
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        (net(x)[:, 0] - y).square().mean().backward()
        optimiser.step()
    return net, x, y, new


def _ours(method: ntkgp.Exact | ntkgp.LowRank) -> Callable[..., Tensor]:
    def std(net: nn.Module, x: Tensor, y: Tensor, new: Tensor) -> Tensor:
        posterior = ntkgp.fit(net, x, y, noise_var=NOISE**2, method=method, prior_mean=ntkgp.network_mean,
                              generator=torch.Generator().manual_seed(0))  # fmt: skip
        return posterior.predict(new).std

    return std


def _gpytorch(cholesky: bool) -> Callable[..., Tensor]:
    def std(net: nn.Module, x: Tensor, y: Tensor, new: Tensor) -> Tensor:
        import gpytorch

        class Tangent(gpytorch.kernels.Kernel):
            def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
                if diag:
                    return ntkgp.kernel_diag(net, x1)
                return ntkgp.kernel(net, x1, None if x1.shape == x2.shape and torch.equal(x1, x2) else x2)

        class Model(gpytorch.models.ExactGP):
            def __init__(self, likelihood: Any):
                super().__init__(x, y - net(x)[:, 0].detach(), likelihood)
                self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), Tangent()

            def forward(self, x: Tensor) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = NOISE**2
        model = Model(likelihood).double().eval()
        size = len(x) + len(new) + 1 if cholesky else gpytorch.settings.max_cholesky_size.value()
        with torch.no_grad(), gpytorch.settings.max_cholesky_size(size):
            return model(new).variance.sqrt()

    return std


def _sklearn(net: nn.Module, x: Tensor, y: Tensor, new: Tensor) -> Tensor:
    import numpy as np
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Kernel

    class Tangent(Kernel):
        def __init__(self) -> None:  # scikit-learn wants to see that there are no parameters
            pass

        def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
            return ntkgp.kernel(net, torch.from_numpy(X), None if Y is None else torch.from_numpy(Y)).numpy()

        def diag(self, X: Any) -> Any:
            return ntkgp.kernel_diag(net, torch.from_numpy(X)).numpy()

        def is_stationary(self) -> bool:
            return False

    model: Any = GaussianProcessRegressor(Tangent(), alpha=NOISE**2, optimizer=None)
    model.fit(x.numpy(), np.asarray(y - net(x)[:, 0].detach()))
    return torch.from_numpy(model.predict(new.numpy(), return_std=True)[1])


def _laplace(weights: str, structure: str, dtype: torch.dtype = torch.float64, **options: Any) -> Callable[..., Tensor]:
    def std(net: nn.Module, x: Tensor, y: Tensor, new: Tensor) -> Tensor:
        from laplace.curvature import BackPackGGN

        extra = {"backend": BackPackGGN, **options} if structure == "gp" else options  # its own default for this structure
        if extra.get("n_subset") == 0:
            extra["n_subset"] = len(x)
        net, x, y, new = net.to(dtype), x.to(dtype), y.to(dtype), new.to(dtype)
        known = {"sigma_noise": NOISE, "prior_precision": 1.0}
        fitted = laplace_torch.approximation(net, x, y.unsqueeze(1), weights, structure, len(x), **known, **extra)
        kind = "gp" if structure == "gp" else "glm"
        return laplace_torch.predictive(fitted, new, 100, kind)[1].flatten().detach().double().sqrt()

    return std


METHODS: dict[str, Callable[..., Tensor]] = {
    "ntkgp Exact": _ours(ntkgp.Exact()),
    "ntkgp LowRank(rank=64, draws=16)": _ours(ntkgp.LowRank(rank=64, draws=16)),
    "ntkgp LowRank(rank=256, draws=16)": _ours(ntkgp.LowRank(rank=256, draws=16)),
    "GPyTorch ExactGP, its defaults": _gpytorch(cholesky=False),
    "GPyTorch ExactGP, Cholesky": _gpytorch(cholesky=True),
    "scikit-learn GPR": _sklearn,
    "laplace-torch kron": _laplace("all", "kron"),
    "laplace-torch diag": _laplace("all", "diag"),
    "laplace-torch last layer, full": _laplace("last_layer", "full"),
    "laplace-torch gp, all points": _laplace("all", "gp", n_subset=0),
    "laplace-torch gp, 250 points": _laplace("all", "gp", n_subset=250),
    "laplace-torch full": _laplace("all", "full"),
}


def measure(name: str, case: str, threads: int) -> dict[str, Any]:
    """One method on a stored case, in a process of its own: memory of the first run, the better time of two."""
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    slow = "laplace-torch full" in name  # once is enough: what would be warmed up is little beside it
    stored = torch.load(case)
    x, y, new = stored["x"], stored["y"], stored["new"]

    def answer(count: int) -> tuple[float, Tensor]:
        net = network()
        net.load_state_dict(stored["weights"])
        clock = clock_of(threads)
        start = clock()
        std = METHODS[name](net, x[:count].clone(), y[:count].clone(), new)
        return clock() - start, std

    if not slow:
        answer(300)  # imports, thread pools
    with Peak() as peak:
        seconds, std = answer(len(x))
    if not slow:
        seconds = min(seconds, answer(len(x))[0])
    error = float((std - stored["std"]).norm() / stored["std"].norm())
    worst = float((std / stored["std"] - 1).abs().max())
    return {"seconds": seconds, "peak_bytes": peak.bytes, "std_error": error, "worst_std_error": worst}


def run(points: int, queries: int, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    net, x, y, new = problem(points, queries)
    exact = _ours(ntkgp.Exact())(net, x, y, new)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        case = Path(folder) / "case.pt"
        torch.save({"weights": net.state_dict(), "x": x, "y": y, "new": new, "std": exact}, case)
        for name in METHODS:
            arguments = {"name": name, "case": str(case), "threads": threads}
            rows.append({"method": name, **isolated("benchmarks.speed.rivals:measure", arguments, timeout=240)})
            print(rows[-1], flush=True)
    parameters = sum(p.numel() for p in net.parameters())
    return {"points": points, "queries": queries, "parameters": parameters, "noise": NOISE, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    print(save("rivals", run(arguments.points, arguments.queries, arguments.threads), packages=PACKAGES))


if __name__ == "__main__":
    main()
