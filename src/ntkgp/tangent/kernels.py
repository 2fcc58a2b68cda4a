"""The empirical neural tangent kernel of any module, equation (3) of the paper."""

from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.check_data import check_finite, check_inputs
from ntkgp._system.settings import in_own_settings
from ntkgp.tangent.opening import open_network, tangent_of


@in_own_settings()
def kernel(module: nn.Module, x1: Tensor, x2: Tensor | None = None) -> Float[Tensor, "NC MC"]:
    """K(x1, x2) = J(x1) J(x2)ᵀ at the module's weights; rows and columns are ordered point-major.

    Uses layer factors where the layers are known, ``torch.func`` elsewhere. Memory: the result, the factors
    (N + M)·Σ_layers(C·o + i), and blocks of a few hundred MB. Computes in the module's dtype.

    Args:
        module: any ``nn.Module`` that maps (N, ...) to (N,) or (N, C).
        x1: N points.
        x2: M points; None takes x1, at half the cost.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(3, out_features=2, width=16, generator=torch.Generator().manual_seed(0))
        >>> kernel(net, torch.zeros(4, 3), torch.ones(5, 3)).shape
        torch.Size([8, 10])
    """
    network, outputs = open_network(module, x1)
    tangent = tangent_of(network, x1, outputs)
    if x2 is not None:
        check_inputs(x2, module, "x2")
        if x2.shape[1:] != x1.shape[1:]:
            raise ValueError(f"x2 must have shape (M, {', '.join(map(str, x1.shape[1:]))}) like x1, got {tuple(x2.shape)}")
    rows = tangent.at(x1)
    found = rows.gram() if x2 is None else rows.cross(tangent.at(x2))
    check_finite(found, outputs, f"the kernel (in {network.dtype})", "x1")
    return found


@in_own_settings()
def kernel_diag(module: nn.Module, x: Tensor) -> Float[Tensor, "NC"]:
    """The diagonal of ``kernel(module, x)``: the prior variance of each output, without forming the matrix.

    Memory: the factors of N points, N·Σ_layers(C·o + i).

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(3, width=16, generator=torch.Generator().manual_seed(0))
        >>> x = torch.ones(4, 3)
        >>> torch.allclose(kernel_diag(net, x), kernel(net, x).diagonal())
        True
    """
    network, outputs = open_network(module, x)
    found = tangent_of(network, x, outputs).at(x).diag()
    check_finite(found, outputs, f"the kernel (in {network.dtype})")
    return found
