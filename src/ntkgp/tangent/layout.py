"""The order of the P parameters in flat vectors, and the packing of such vectors per layer."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.tangent.factors.layers import Layer


@dataclass(frozen=True)
class ParameterLayout:
    """The flat layout of the trainable parameters: P numbers, in the order of `shapes`."""

    shapes: dict[str, torch.Size]

    @property
    def size(self) -> int:
        """P."""
        return sum(shape.numel() for shape in self.shapes.values())

    def split(self, flat: Float[Tensor, "*batch P"]) -> dict[str, Tensor]:
        """Views of a flat vector (or a stack of them), one per parameter."""
        parts = flat.split([shape.numel() for shape in self.shapes.values()], dim=-1)
        return {name: part.reshape((*flat.shape[:-1], *shape))
                for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}  # fmt: skip

    def join(self, parts: Mapping[str, Tensor]) -> Float[Tensor, "*batch P"]:
        """The inverse of :meth:`split`."""
        flat = [parts[name].flatten(-len(shape)) if shape else parts[name].unsqueeze(-1)
                for name, shape in self.shapes.items()]  # fmt: skip
        return torch.cat(flat, dim=-1)


Packed = list[Tensor]  # S vectors: one tensor per factored layer, then one flat tensor for the other parameters


@dataclass(frozen=True)
class Packing:
    """Packs flat vectors over the P parameters into one tensor per layer: once per product, not once per chunk."""

    layers: list[Layer]
    fast: ParameterLayout  # the parameters of the factored layers; they come first in flat vectors
    slow: ParameterLayout  # the parameters left to autodiff

    @property
    def layout(self) -> ParameterLayout:
        """All parameters, in flat order."""
        return ParameterLayout({**self.fast.shapes, **self.slow.shapes})

    def pack(self, v: Float[Tensor, "P S"]) -> Packed:
        """One tensor (S, ...) per layer, then one for the other parameters."""
        fast, slow = v.T.split([self.fast.size, self.slow.size], dim=1)
        parts = self.fast.split(fast)
        return [*(layer.pack(parts) for layer in self.layers), slow]

    def unpack(self, packed: Packed) -> Float[Tensor, "P S"]:
        """The inverse of :meth:`pack`."""
        *tensors, slow = packed
        parts: dict[str, Tensor] = {}
        for layer, tensor in zip(self.layers, tensors, strict=True):
            parts.update(layer.unpack(tensor))
        return (torch.cat([self.fast.join(parts), slow], dim=1) if parts else slow).T

    def zeros(self, columns: int, like: Tensor) -> Packed:
        """Packed zero vectors."""
        return [part.contiguous() for part in self.pack(like.new_zeros(self.fast.size + self.slow.size, columns))]
