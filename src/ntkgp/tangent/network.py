"""Turns the user's module into a pure function of its parameters, once, when it enters the library."""

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from ntkgp._system.errors import ReentryError
from ntkgp._system.locks import ForkLock
from ntkgp.networks.infinite.layers import is_infinite
from ntkgp.networks.infinite.network import InfiniteNetwork
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
        self.module = _copied(module).requires_grad_(False)
        if dtype is not None:
            self.module.to(dtype)
        self.anchor = {name: p.detach() for name, p in self.module.named_parameters() if name in names}
        self.infinite = InfiniteNetwork.of(self.module) if is_infinite(self.module) else None
        self.layout = ParameterLayout({name: p.shape for name, p in self.anchor.items()})
        self.dtype, self.device = next((p.dtype, p.device) for p in self.anchor.values())
        # Whether torch.func works. With recurrent layers it fails or is very slow; other failures are noticed when they happen.
        self.transformable = not any(isinstance(part, nn.RNNBase) for part in self.module.modules())
        # Whether forward mode gives the same derivatives as training, which uses reverse mode; None before it was tried. It
        # does not where a padding row is not trained.
        padded = any(isinstance(part, nn.Embedding) and part.padding_idx is not None for part in self.module.modules())
        self.forward_mode = False if padded else None
        self.checked_rows = set[tuple[int, ...]]()  # sizes for which torch.func's rows of J were found to be right
        self.unit = torch.finfo(self.dtype).eps  # relative rounding unit of its operations: larger if some are less precise
        self.lock = ForkLock(order=1)  # functional_call swaps tensors inside the copy while it runs
        self._running = False
        self._places = _places(self.module)
        self.settings: dict[str, Tensor] = {}

    def __call__(self, params: Mapping[str, Tensor], x: Tensor) -> Float[Tensor, "N C"]:
        """f(x; θ) with θ = `params` for the trainable parameters named there and θ0 for the others."""
        with self.alone():
            return self.run(params, x)

    def run(self, params: Mapping[str, Tensor], x: Tensor) -> Float[Tensor, "N C"]:
        """The same for a caller that is already inside :meth:`alone`."""
        # Each place once: torch itself would name a layer that is used twice by both of its paths, and then restore the
        # second of the swapped tensors instead of the module's own.
        values = {place: t for name, t in {**self.settings, **params}.items() for place in self._places[name]}
        out = functional_call(self.module, values, (x,), tie_weights=False)
        return out.reshape(len(x), -1)  # some modules squeeze the axis of a single point

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other threads out of the copy, which holds the tensors and hooks of a call while it runs.

        A signal handler runs in the interrupted thread, which no lock stops: a call from there is refused.
        """
        with self.lock, _differentiable_attention:
            if self._running:
                raise ReentryError(
                    "this posterior was called inside a call of its own network, as in a signal handler; set a flag in the "
                    "handler, and call the posterior after the interrupted call has returned"
                )
            self._running = True
            try:
                yield
            finally:
                self._running = False

    def __deepcopy__(self, memo: dict[int, object]) -> "PureNetwork":
        return self._like(self.dtype)

    def _like(self, dtype: torch.dtype) -> "PureNetwork":
        """Copy the network into another dtype."""
        other = PureNetwork(self.module, dtype, self.anchor.keys())
        other.transformable, other.forward_mode = self.transformable, self.forward_mode
        other.unit = max(other.unit, self.unit) if self.unit > torch.finfo(self.dtype).eps else other.unit
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
        """Convert x to the dtype of the network; integers (indices) are unchanged. Autograd cannot save inference tensors."""
        x = x.clone() if x.is_inference() else x
        return x.to(self.dtype) if x.is_floating_point() else x

    def initial(self, x: Tensor) -> Float[Tensor, "N C"]:
        """f(x; θ0): the network before any training; for an infinite one its mean over the weights, which is zero."""
        if self.infinite is not None:
            return torch.zeros(len(x), self.infinite.outputs, dtype=self.dtype, device=self.device)
        return self({}, self.cast(x))


def random_weights(out: Tensor) -> Float[Tensor, "n C"]:
    """Draw a weight per output, far from 0 and different from all others; always the same, so that fits can be repeated."""
    draw = torch.rand(2, *out.shape, generator=torch.Generator().manual_seed(0), dtype=out.dtype)
    return torch.where(draw[0] < 0.5, -1 - draw[1], 1 + draw[1]).to(out.device)


def weighted_gradients(network: PureNetwork, names: list[str], x: Tensor, u: Float[Tensor, "n C"]) -> dict[str, Tensor]:
    """The gradient of ⟨u, f(x)⟩ for some parameters, by one call of the network without hooks."""
    with torch.enable_grad():
        leaves = {name: network.anchor[name].detach().requires_grad_() for name in names}
        out = network(leaves, x.detach())
        if not out.requires_grad:
            return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        found = torch.autograd.grad(out, list(leaves.values()), u, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def _copied(module: nn.Module) -> nn.Module:
    """Copy the module; an error names the part that cannot be copied."""
    try:
        return copy.deepcopy(module)
    except Exception as error:  # whatever the module's own parts raise
        culprit = _uncopied(module)
        advice = (
            f"its attribute {culprit!r} cannot; define __deepcopy__ in the class that owns it, or create it when it is used"
            if culprit
            else "with torch.nn.utils.weight_norm, use torch.nn.utils.parametrizations.weight_norm instead"
        )
        raise ValueError(f"the module must be such that copy.deepcopy can copy it, got {error}: {advice}") from error


def _uncopied(module: nn.Module) -> str | None:
    """The path of the first attribute, other than tensors and submodules, that cannot be copied."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name.startswith("_") and isinstance(value, dict):  # parameters, buffers, submodules, hooks
                continue
            try:
                copy.deepcopy(value)
            except Exception:
                return f"{path}.{name}" if path else name
    return None


def _places(module: nn.Module) -> dict[str, list[str]]:
    """By name of each parameter and buffer: all places where the module has it, each once, even in a layer used twice."""
    names = {id(t): name for name, t in [*module.named_parameters(), *module.named_buffers()]}
    found: dict[str, list[str]] = {}
    for path, part in module.named_modules():
        for attribute, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if tensor is not None:
                found.setdefault(names[id(tensor)], []).append(f"{path}.{attribute}" if path else attribute)
    return found


class _Roundings(TorchDispatchMode):
    """Notes the least precise dtype to which an operation has rounded a more precise tensor."""

    def __init__(self, unit: float):
        super().__init__()
        self.unit = unit

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.is_floating_point():
            unit = torch.finfo(out.dtype).eps
            if any(isinstance(a, Tensor) and a.is_floating_point() and torch.finfo(a.dtype).eps < unit for a in args):
                self.unit = max(self.unit, unit)
        return out


@torch.no_grad()
def rounding_unit(network: PureNetwork, x: Tensor) -> float:
    """The relative rounding unit of the least precise operation of a call on x."""
    with _Roundings(torch.finfo(network.dtype).eps) as roundings:
        network({}, x)
    return roundings.unit
