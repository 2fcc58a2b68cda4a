"""The layer rules: how each known kind of layer turns its input and output gradients into a :class:`Factor`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from ntkgp.networks.layers import NTKLinear
from ntkgp.tangent.factors.direct import Direct
from ntkgp.tangent.factors.factor import Factor
from ntkgp.tangent.factors.lookup import Lookup
from ntkgp.tangent.factors.outer import Outer

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class Layer(ABC):
    """A factored layer: the names of its parameters and the prior standard deviation of each.

    Layers compare by these fields, so two modules that share all their parameters are one layer used twice.
    """

    weight: str
    bias: str | None
    weight_scale: float
    bias_scale: float
    shape: torch.Size

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters the layer owns."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def scale(self, name: str) -> float:
        """The prior standard deviation of one of its parameters."""
        return self.weight_scale if name == self.weight else self.bias_scale

    @abstractmethod
    def factor(self, module: nn.Module, x: Tensor, gradients: list[Tensor], n: int) -> Factor:
        """The factor of one call on n points, from the layer's input x and the gradient of each network output."""

    @abstractmethod
    def pack(self, parts: dict[str, Tensor]) -> Tensor:
        """Weight and bias as one tensor (S, ...)."""

    @abstractmethod
    def unpack(self, packed: Tensor) -> dict[str, Tensor]:
        """The inverse of :meth:`pack`."""


class MatrixLayer(Layer):
    """Layers that multiply by a matrix; the bias is the weight of one more input, always 1.

    Wide matrices are padded with zeros to a multiple of eight columns: with a bias 512 columns become 513, which would make
    matrix products on a GPU three times slower.
    """

    @property
    def _columns(self) -> tuple[int, int]:
        """The number of columns of the weight, and of zeros after weight and bias."""
        weight = self.shape[1:].numel()
        total = weight + (self.bias is not None)
        return weight, -total % 8 if total > 64 else 0

    def pack(self, parts: dict[str, Tensor]) -> Tensor:
        """(S, o, i): weight, bias, padding."""
        weight = parts[self.weight].flatten(2)
        columns = [weight] if self.bias is None else [weight, parts[self.bias].unsqueeze(-1)]
        return torch.cat([*columns, weight.new_zeros(*weight.shape[:2], self._columns[1])], dim=-1)

    def unpack(self, packed: Tensor) -> dict[str, Tensor]:
        """The inverse of :meth:`pack`."""
        count = self._columns[0]
        parts = {self.weight: packed[..., :count].reshape(len(packed), *self.shape)}
        return parts if self.bias is None else {**parts, self.bias: packed[..., count]}

    def _outer(self, a: Tensor, gradients: list[Tensor], gain: float = 1.0) -> Factor:
        """The factor with the weight, the bias and the padding as columns of a."""
        columns = [a * (gain * self.weight_scale)]
        if self.bias is not None:
            columns.append(a.new_full((*a.shape[:-1], 1), self.bias_scale))
        columns.append(a.new_zeros(*a.shape[:-1], self._columns[1]))
        return Outer(torch.stack(gradients, dim=1), torch.cat(columns, dim=-1))


class LinearLayer(MatrixLayer):
    """``nn.Linear`` and :class:`NTKLinear`, with any number of positions per sample."""

    def factor(self, module: nn.Module, x: Tensor, gradients: list[Tensor], n: int) -> Factor:
        """The input and the gradients at each position."""
        flat = [grad.reshape(n, -1, grad.shape[-1]) for grad in gradients]
        return self._outer(x.reshape(n, -1, x.shape[-1]), flat, getattr(module, "gain", 1.0))


class ConvLayer(MatrixLayer):
    """``nn.Conv1d`` and ``nn.Conv2d``: a linear layer on patches."""

    def factor(self, module: nn.Module, x: Tensor, gradients: list[Tensor], n: int) -> Factor:
        """The patch and the gradients at each pixel."""
        assert isinstance(module, _ConvNd)
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        x = F.pad(x, module._reversed_padding_repeated_twice, mode=mode)
        sizes = {"kernel_size": module.kernel_size, "dilation": module.dilation, "stride": module.stride}
        if x.ndim == 3:  # a line is an image of height 1
            x, sizes = x.unsqueeze(2), {name: (1, *size) for name, size in sizes.items()}
        patches = F.unfold(x, **sizes).transpose(1, 2)  # pyright: ignore[reportArgumentType]
        return self._outer(patches, [grad.flatten(2).transpose(1, 2) for grad in gradients])


class NormLayer(Layer):
    """Layer, group and (in eval mode) batch normalisation: a weight and a bias per feature or channel."""

    def factor(self, module: nn.Module, x: Tensor, gradients: list[Tensor], n: int) -> Factor:
        """The normalised input times the gradients, summed over positions."""
        plain = _normalised(module, x)
        g = torch.stack(gradients, dim=1)
        # (n, C, positions…, features…) after layer norm, (n, C, channels, positions…) after the others.
        where = tuple(range(2, g.ndim - len(self.shape))) if isinstance(module, nn.LayerNorm) else tuple(range(3, g.ndim))
        columns = [_sum(g * plain.unsqueeze(1), where).flatten(2) * self.weight_scale]
        if self.bias is not None:
            columns.append(_sum(g, where).flatten(2) * self.bias_scale)
        return Direct(torch.cat(columns, dim=2))

    def pack(self, parts: dict[str, Tensor]) -> Tensor:
        """(S, p) or (S, 2p), the bias after the weight."""
        return torch.cat([parts[name].flatten(1) for name in self.parameters], dim=1)

    def unpack(self, packed: Tensor) -> dict[str, Tensor]:
        """The inverse of :meth:`pack`."""
        parts = packed.split(self.shape.numel(), dim=1)
        return {name: part.reshape(len(packed), *self.shape) for name, part in zip(self.parameters, parts, strict=True)}


class EmbeddingLayer(Layer):
    """``nn.Embedding``: a lookup table."""

    def factor(self, module: nn.Module, x: Tensor, gradients: list[Tensor], n: int) -> Factor:
        """The indices and the gradients at each position; zero gradients for the padding row, which is not trained."""
        assert isinstance(module, nn.Embedding)
        g = torch.stack([grad.reshape(n, -1, grad.shape[-1]) for grad in gradients], dim=1) * self.weight_scale
        index = x.reshape(n, -1).long()
        if module.padding_idx is not None:
            g = g * (index != module.padding_idx).view(n, 1, -1, 1)
        return Lookup(g, index, module.num_embeddings)

    def pack(self, parts: dict[str, Tensor]) -> Tensor:
        """(S, V, d), the table itself."""
        return parts[self.weight].contiguous()

    def unpack(self, packed: Tensor) -> dict[str, Tensor]:
        """The inverse of :meth:`pack`."""
        return {self.weight: packed}


def layer_kind(module: nn.Module) -> Callable[..., Layer] | None:
    """The layer rule for a module, or None if there is none.

    There is none for a layer that somebody has changed, by a hook or by another ``forward``.
    """
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    if any(hooks) or "forward" in vars(module):
        return None
    if type(module) in (nn.Linear, NTKLinear):
        return LinearLayer
    if type(module) in (nn.Conv1d, nn.Conv2d) and module.groups == 1:
        return ConvLayer
    if type(module) in (nn.LayerNorm, nn.GroupNorm) or (type(module) in BATCH_NORMS and not module.training):
        return NormLayer
    # max_norm changes the table in each lookup; scale_grad_by_freq makes gradients depend on the batch.
    if type(module) is nn.Embedding and module.max_norm is None and not module.scale_grad_by_freq:
        return EmbeddingLayer
    return None


def _normalised(module: nn.Module, x: Tensor) -> Tensor:
    """The normalised input, which the module multiplies by its weight."""
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(x, module.num_groups, eps=module.eps)
    assert isinstance(module, _BatchNorm)
    return F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)


def _sum(t: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Sum over `dims`; torch would sum over all axes if there are none."""
    return t.sum(dim=dims) if dims else t
