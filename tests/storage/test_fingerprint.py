"""A file is loaded with the module that was fitted, and with no other."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import ntkgp
from tests.support import modules
from tests.support.cases import by_name
from tests.support.files import fitted, linear

# The shape checker of these tests draws random numbers of its own; and it is slow with functions inside of functions.
pytestmark = pytest.mark.usefixtures("unchecked")


def changed(module: nn.Module, name: str) -> nn.Module:
    tensor = dict([*module.named_parameters(), *module.named_buffers()])[name]
    with torch.no_grad():
        tensor.view(-1)[0] = tensor.view(-1)[0] * (1 + 1e-15) + (1e-15 if tensor.dtype == torch.float64 else 1)
    return module


def with_activation(module: nn.Module, kind: type[nn.Module]) -> nn.Module:
    for path, part in module.named_children():
        if isinstance(part, nn.Tanh | nn.ReLU | nn.Sigmoid | nn.GELU | nn.SiLU):
            setattr(module, path, kind())
    return module


OTHERS: dict[str, tuple[str, Callable[[nn.Sequential], nn.Module], str]] = {
    "a weight": ("batch norm in eval mode", lambda m: changed(m, "3.weight"), "'3.weight' of the module has other values"),
    "a buffer": ("batch norm in eval mode", lambda m: changed(m, "1.running_mean"), "'1.running_mean' .* other values"),
    "a count": ("batch norm in eval mode", lambda m: changed(m, "1.num_batches_tracked"), "'1.num_batches_tracked'"),
    "wider": ("standard parametrisation", lambda m: modules.standard(2).double(), "'4.weight' .* has shape .* fitted module"),
    "less deep": ("standard parametrisation", lambda m: nn.Sequential(*list(m)[:3]), "has no '4.weight'"),
    "deeper": ("standard parametrisation", lambda m: nn.Sequential(*m, linear(1)), "has '5.weight', but the fitted module"),
    "another dtype": ("standard parametrisation", lambda m: m.float(), "'0.weight' .*float32, .*use module.to.torch.float64"),
    "wider dtype": ("float32", lambda m: m.double(), "float64, but was torch.float32 in the fitted module"),
    "an activation": ("standard parametrisation", lambda m: with_activation(m, nn.Softplus), "layer '1' is Softplus, was "),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_module_is_refused(what: str, path: Path):
    name, other, match = OTHERS[what]
    case = by_name(name)
    fitted(case).save(path)
    module = case.module()
    assert isinstance(module, nn.Sequential)
    with pytest.raises(ValueError, match=f"cannot load .*{path.name}: .*{match}"):
        ntkgp.load(path, other(module))
