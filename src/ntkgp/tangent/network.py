"""Turns the user's module into a pure function of its parameters, once, when it enters the library."""

import contextlib
import copy
from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from ntkgp._system.locks import ForkLock
from ntkgp.tangent.layout import ParameterLayout


class _DifferentiableAttention(contextlib.AbstractContextManager[None]):
    """Plain attention kernels: the fused ones have neither a forward-mode derivative nor a batching rule.

    torch's switches are process-wide: the first thread to enter sets them, the last one to leave restores them.
    """

    def __init__(self):
        self.lock, self.inside, self.undo = ForkLock(order=2), 0, contextlib.ExitStack()

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.undo.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
                torch.backends.mha.set_fastpath_enabled(False)
                self.undo.enter_context(sdpa_kernel(SDPBackend.MATH))
            self.inside += 1

    def __exit__(self, *exception: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.undo.close()


_differentiable_attention = _DifferentiableAttention()


class PureNetwork:
    """f(x; θ) → (N, C): a private, frozen copy of the user's module, called with any parameters.

    The copy costs one set of weights and buys two promises: nothing done here reaches the user's module, and nothing the
    user does to it later (training it, ``.train()``, ``.to()``) reaches a fitted posterior.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype | None = None, names: Iterable[str] | None = None):
        if names is None:
            names = {name for name, p in module.named_parameters() if p.requires_grad}
        try:
            self.module = copy.deepcopy(module).requires_grad_(False)
        except RuntimeError as error:
            raise ValueError(
                f"the module cannot be copied ({error}); with torch.nn.utils.weight_norm, use "
                "torch.nn.utils.parametrizations.weight_norm instead"
            ) from error
        if dtype is not None:
            self.module.to(dtype)
        self.anchor = {name: p.detach() for name, p in self.module.named_parameters() if name in names}
        self.layout = ParameterLayout({name: p.shape for name, p in self.anchor.items()})
        self.dtype, self.device = next((p.dtype, p.device) for p in self.anchor.values())
        # Whether torch.func works. With recurrent layers it fails or is very slow; other failures are noticed when they happen.
        self.transformable = not any(isinstance(part, nn.RNNBase) for part in self.module.modules())
        # Embedding rows that training never changes: reverse mode ignores them, forward mode would not.
        self.masks = _padding_masks(self.module)
        self.lock = ForkLock(order=1)  # functional_call swaps tensors inside the copy while it runs
        self.settings: dict[str, Tensor] = {}

    def __call__(self, params: Mapping[str, Tensor], x: Tensor) -> Float[Tensor, "N C"]:
        """f(x; θ) with θ = `params` for the trainable parameters named there and θ0 for the others."""
        with self.lock, _differentiable_attention:
            out = functional_call(self.module, {**self.settings, **params}, (x,))
        return out.reshape(len(x), -1)  # some modules squeeze the axis of a single point

    def __deepcopy__(self, memo: dict[int, object]) -> "PureNetwork":
        return self._like(self.dtype)

    def _like(self, dtype: torch.dtype) -> "PureNetwork":
        """Copy the network into another dtype."""
        other = PureNetwork(self.module, dtype, self.anchor.keys())
        other.transformable = self.transformable
        return other

    def with_settings(self, settings: dict[str, Tensor]) -> "PureNetwork":
        """The same network with other values for some buffers or weights; the values may require gradients."""
        other = copy.copy(self)
        other.settings = settings
        other.anchor = {name: settings.get(name, p) for name, p in self.anchor.items()}
        return other

    def differentiable(self, x: Tensor) -> bool:
        """Whether gradients with respect to x or the settings may be needed."""
        return torch.is_grad_enabled() and any(t.requires_grad for t in (x, *self.settings.values()))

    def to(self, dtype: torch.dtype) -> "PureNetwork":
        """The same network computing in another dtype."""
        return self if dtype == self.dtype else self._like(dtype)

    def cast(self, x: Tensor) -> Tensor:
        """Convert x to the dtype of the network; integers (indices) are unchanged."""
        return x.to(self.dtype) if x.is_floating_point() else x

    def initial(self, x: Tensor) -> Float[Tensor, "N C"]:
        """f(x; θ0): the network before any training."""
        return self({}, self.cast(x))


def _padding_masks(module: nn.Module) -> dict[str, Tensor]:
    """A mask per embedding table with a padding row: zero at that row, one elsewhere."""
    masks = {}
    for path, part in module.named_modules():
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            mask = torch.ones_like(part.weight)
            mask[part.padding_idx] = 0
            masks[f"{path}.weight" if path else "weight"] = mask
    return masks
