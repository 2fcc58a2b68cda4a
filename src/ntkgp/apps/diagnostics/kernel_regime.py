"""Measure how well the tangent at the initial weights still describes a trained network."""

import copy
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from ntkgp._system.check_options import check_count
from ntkgp.tangent.network import PureNetwork
from ntkgp.tangent.opening import open_network
from ntkgp.tangent.tangent import Tangent

MAX_KERNEL_ROWS = 4000  # rows of a kernel matrix: 128 MB in float64


@dataclass(frozen=True)
class KernelRegime:
    """Distance between a network trained from θ0 to θ and its tangent at θ0; returned by :func:`kernel_regime`.

    Attributes:
        mean_drift: ‖f(x; θ) − f_lin(x; θ)‖ / ‖f(x; θ) − f(x; θ0)‖, with f_lin(x; θ) = f(x; θ0) + J(x)(θ − θ0): the
            fraction of the learned change that the linearised network misses. 0 if nothing changed.
        kernel_change: ‖K_θ − K_θ0‖ / ‖K_θ0‖ in the Frobenius norm: the relative change of the kernel by training.
        weight_drift: ‖θ − θ0‖ / ‖θ0‖ over the trainable parameters.

    Example:
        >>> KernelRegime(mean_drift=0.02, kernel_change=0.3, weight_drift=0.01).verdict
        'at the edge of the kernel regime: read the posterior as an approximation'
    """

    mean_drift: float
    kernel_change: float
    weight_drift: float

    @property
    def verdict(self) -> str:
        """In words, from the larger of `mean_drift` and `kernel_change`: inside up to 0.1, at the edge up to 0.5."""
        if self.weight_drift == 0:
            return "the weights have not moved: nothing to judge"
        drift = max(self.mean_drift, self.kernel_change)
        if drift <= 0.1:
            return "in the kernel regime: the posterior describes this network"
        if drift <= 0.5:
            return "at the edge of the kernel regime: read the posterior as an approximation"
        return "outside the kernel regime: widen the network, or take the tangent at trained weights"

    def as_dict(self) -> dict[str, float | str]:
        """The results as plain numbers and texts, ready for JSON."""
        return {**asdict(self), "verdict": self.verdict}


def kernel_regime(module: nn.Module, trained: nn.Module, x: Tensor, *, points: int = 200) -> KernelRegime:
    """Measure how well the tangent at the initial weights still describes a trained network.

    Computes in float64 with matrix products, and never stores J(x). Cost: 2·N·C·P operations with layer factors, plus two
    kernel matrices.

    Args:
        module: the network before training, at θ0.
        trained: the same architecture after training, at θ.
        x: N points, (N, ...).
        points: number of evenly spaced points of x for the kernel matrices; reduced if these would exceed 4,000 rows.

    Example:
        >>> import copy, torch, ntkgp
        >>> net = ntkgp.mlp(1, width=64, generator=torch.Generator().manual_seed(0))
        >>> trained = copy.deepcopy(net)
        >>> with torch.no_grad(): _ = trained[-1].weight.mul_(1.01)  # the output is linear in these
        >>> regime = kernel_regime(net, trained, torch.linspace(-1, 1, 20).unsqueeze(1))
        >>> regime.mean_drift, bool(regime.kernel_change < 0.1)
        (0.0, True)
    """
    return regime_of(open_network(module, x, torch.float64), trained, x, points)


def regime_of(opened: tuple[PureNetwork, int], trained: nn.Module, x: Tensor, points: int) -> KernelRegime:
    """:func:`kernel_regime` for the result of ``open_network``."""
    check_count(points, "points", 1)
    (before, outputs), x = opened, x.detach()
    after, outputs_after = open_network(_same_parameters(before, trained), x, torch.float64)
    if outputs_after != outputs:
        raise ValueError(f"trained must have {outputs} output(s) like the module, got {outputs_after}")
    tangent = Tangent(before, x, outputs)
    shift = tangent.layout.join({name: after.anchor[name] - p for name, p in before.anchor.items()})
    start = tangent.layout.join(before.anchor)

    f0, f = before.initial(x).flatten(), after.initial(x).flatten()
    linear = tangent.at(x).matmat(shift.unsqueeze(1)).squeeze(1)

    few = x[torch.linspace(0, len(x) - 1, max(1, min(len(x), points, MAX_KERNEL_ROWS // outputs))).long().to(x.device)]
    k0, k = tangent.at(few).gram(), Tangent(after, few, outputs).at(few).gram()
    return KernelRegime(
        mean_drift=_ratio(f - f0 - linear, f - f0, f0, f, linear),
        kernel_change=_ratio(k - k0, k0, k),
        weight_drift=_ratio(shift, start, shift),
    )


def _same_parameters(network: PureNetwork, trained: nn.Module) -> nn.Module:
    """A copy of the trained module with the same trainable parameters as the network."""
    if not isinstance(trained, nn.Module):
        raise TypeError(f"trained must be a torch.nn.Module, got {type(trained).__name__}")
    expected = {name: tuple(p.shape) for name, p in network.module.named_parameters()}
    got = {name: tuple(p.shape) for name, p in trained.named_parameters()}
    wrong = [name for name in expected | got if expected.get(name) != got.get(name)]
    if wrong:
        name = wrong[0]
        raise ValueError(
            f"trained must have the same parameters as the module: expected {name!r} of shape {expected.get(name)}, got "
            f"{got.get(name)} (None: missing); train a copy.deepcopy of the module, and pass it unwrapped from compile or "
            "parallel wrappers"
        )
    trained = copy.deepcopy(trained)
    for name, p in trained.named_parameters():
        p.requires_grad_(name in network.anchor)
    return trained


def _ratio(part: Tensor, whole: Tensor, *terms: Tensor) -> float:
    """‖part‖ / ‖whole‖, always finite; a part below the rounding error of its terms counts as 0."""
    rounding = 1e-12 * max(float(t.norm()) for t in (whole, *terms))
    size = float(part.norm())
    return 0.0 if size <= rounding else size / max(float(whole.norm()), rounding)
