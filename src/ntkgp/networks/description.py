"""The structure of a network as plain data: a file can describe a network without holding any code."""

import math
from typing import Any

import torch
from torch import nn

from ntkgp._system.check_options import check_count
from ntkgp.networks.activations import Erf, Sine
from ntkgp.networks.infinite.layers import InfiniteLinear
from ntkgp.networks.layers import InputScales, NTKLinear
from ntkgp.networks.sums import SumOfNetworks

LAYERS_WITHOUT_OPTIONS = {"SiLU": nn.SiLU, "ReLU": nn.ReLU, "Sine": Sine, "Erf": Erf}
Description = dict[str, Any]


def describe(module: nn.Module) -> Description:
    """Describe the layers of a network made by :func:`ntkgp.tune_table`, without weights, as data for JSON.

    Example:
        >>> import ntkgp
        >>> net = ntkgp.mlp(2, width=8, activation=Sine())
        >>> rebuild(describe(net)).load_state_dict(net.state_dict())
        <All keys matched successfully>
    """
    kind = type(module).__name__
    if type(module) is nn.Sequential:
        # Not named_children(), which lists a layer only once even if it is used twice.
        return {"kind": kind, "parts": {name: describe(part) for name, part in module._modules.items() if part is not None}}
    if type(module) is SumOfNetworks:
        return {"kind": kind, "parts": [describe(part) for part in module.networks]}
    if type(module) is InputScales:
        return {"kind": kind, "features": len(module.scale)}
    if type(module) in (nn.Linear, NTKLinear):
        sizes = {"in_features": module.in_features, "out_features": module.out_features, "bias": module.bias is not None}
        return {"kind": kind, **sizes, **({"gain": module.gain} if isinstance(module, NTKLinear) else {})}
    if type(module) is InfiniteLinear:
        sizes = {name: None if math.isinf(size) else int(size)  # JSON has no infinity
                 for name, size in (("in_features", module.in_features), ("out_features", module.out_features))}  # fmt: skip
        return {"kind": kind, **sizes, "bias": module.bias_std is not None, "output_scale": module.output_scale}
    if type(module) in LAYERS_WITHOUT_OPTIONS.values():
        return {"kind": kind}
    raise TypeError(f"a {kind} cannot be written as plain data; save its state_dict and build the network in code")


def rebuild(description: Description, most: int | None = None) -> nn.Module:
    """Build the network of a description, with arbitrary weights; torch's random state does not change.

    A description that asks for more than `most` numbers raises ValueError before any memory is allocated.
    """
    try:
        if most is not None and (asked := _count_numbers(description)) > most:
            raise ValueError(f"the description of the network asks for {asked} weights, but the file holds only {most}")
        return _rebuild(description)
    except (ArithmeticError, AttributeError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"the description of the network is damaged: {type(error).__name__} {error}") from error


def _count_numbers(description: Description) -> int:
    """Count the weights and scales of the network."""
    if "parts" in description:
        parts = description["parts"]
        return sum(map(_count_numbers, parts.values() if isinstance(parts, dict) else parts))
    if description.get("kind") == "InfiniteLinear":
        return 1 + bool(description["bias"])
    inputs, outputs = description.get("in_features", 0), description.get("out_features", 0)
    return (inputs + bool(description.get("bias"))) * outputs + description.get("features", 0)


def _rebuild(description: Description) -> nn.Module:
    """Build the network, part by part."""
    kind = description["kind"]
    if kind == "Sequential":
        sequence = nn.Sequential()
        for name, part in description["parts"].items():
            sequence.add_module(name, _rebuild(part))
        return sequence
    if kind == "SumOfNetworks":
        return SumOfNetworks(*(_rebuild(part) for part in description["parts"]))
    if kind == "InputScales":
        check_count(description["features"], "features", 1)
        return InputScales(torch.ones(description["features"]))
    if kind in ("Linear", "NTKLinear"):
        sizes, bias = (description["in_features"], description["out_features"]), bool(description["bias"])
        for size in sizes:
            check_count(size, "in_features and out_features", 1)
        if kind == "Linear":
            return nn.utils.skip_init(nn.Linear, *sizes, bias=bias)
        layer = NTKLinear(*sizes, bias, generator=torch.Generator())
        layer.gain = float(description["gain"])
        return layer
    if kind == "InfiniteLinear":
        inputs, outputs = (
            math.inf if (size := description[name]) is None else size for name in ("in_features", "out_features")
        )
        return InfiniteLinear(inputs, outputs, bool(description["bias"]), output_scale=float(description["output_scale"]))
    if kind in LAYERS_WITHOUT_OPTIONS:
        return LAYERS_WITHOUT_OPTIONS[kind]()
    raise ValueError(f"the network has a layer {kind!r}, which this version of ntkgp does not know; update ntkgp")
