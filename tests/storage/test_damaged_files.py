"""Files that are damaged, cut, foreign or of the future are refused with words."""

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import ntkgp
from ntkgp.storage import file as storage_file
from ntkgp.storage.state import State
from tests.support.cases import by_name
from tests.support.files import fitted, linear
from tests.support.helpers import METHODS, each_method, seeded

# The shape checker of these tests draws random numbers of its own; and it is slow with functions inside of functions.
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, bytes]:
    """A module and the file of its posterior."""
    path = tmp_path_factory.mktemp("small") / "posterior.safetensors"
    net, x = linear(1), torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    ntkgp.fit(net, x, x[:, 0], noise_var=0.1).save(path)
    return net, path.read_bytes()


def test_every_flipped_byte_is_noticed(small: tuple[nn.Module, bytes], path: Path):
    net, good = small
    draw = random.Random(0)
    for place in range(len(good)):
        flip = draw.choice([0x20, 1 << draw.randrange(8), draw.randrange(1, 256)])  # the first turns a into A
        path.write_bytes(good[:place] + bytes([good[place] ^ flip]) + good[place + 1 :])
        with pytest.raises(ValueError, match=path.name):
            ntkgp.load(path, net)
    path.write_bytes(good)
    ntkgp.load(path, net)


def test_padding_of_the_header_counts(path: Path):
    """Spaces after the JSON mean nothing to safetensors; here they are bytes like all others."""
    for length in range(8):  # one of these pads
        storage_file.write(path, "any", State.of(a=torch.zeros(1), text="x" * length))
        good = path.read_bytes()
        end = 8 + int.from_bytes(good[:8], "little")
        padded = end - len(good[:end].rstrip(b" "))
        for place in range(end - padded, end):
            path.write_bytes(good[:place] + b"\n" + good[place + 1 :])
            with pytest.raises(ValueError, match="damaged"):
                storage_file.read(path, torch.device("cpu"))


def test_cut_and_lengthened_files(small: tuple[nn.Module, bytes], path: Path):
    net, good = small
    for bad in [good[:stop] for stop in range(0, len(good), 41)] + [
        good[:-1],
        good + b"\0",
        good + good,
        b"\0" * 100,
        b"PK\3\4" * 9,
    ]:
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=path.name):
            ntkgp.load(path, net)


def test_files_of_others(small: tuple[nn.Module, bytes], path: Path):
    net, _ = small
    for metadata in (None, {"format": "pt"}):
        save_file({"a": torch.zeros(2)}, path, metadata=metadata)
        with pytest.raises(ValueError, match=rf"{path.name} has no ntkgp header: .* not written by posterior.save"):
            ntkgp.load(path, net)
    for text in ("[]", "3", "{"):
        save_file({"a": torch.zeros(2)}, path, metadata={"ntkgp": text})
        with pytest.raises(ValueError, match=rf"{path.name} is damaged: its header is not"):
            ntkgp.load(path, net)
    torch.save({"a": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=rf"{path.name} is damaged, or not a safetensors file"):
        ntkgp.load(path, net)
    for missing in (path.with_name("nothing"), path.parent):
        with pytest.raises(FileNotFoundError, match="there is no file"):
            ntkgp.load(missing, net)


def test_files_of_the_future(path: Path, monkeypatch: pytest.MonkeyPatch):
    case = by_name("paper mlp")
    posterior = fitted(case)
    storage_file.write(path, "a new kind", posterior.state())
    with pytest.raises(ValueError, match=f"{path.name} holds a posterior of kind 'a new kind'.*update ntkgp"):
        ntkgp.load(path, case.module())
    monkeypatch.setattr(storage_file, "FORMAT", storage_file.FORMAT + 1)
    posterior.save(path)
    monkeypatch.undo()
    with pytest.raises(
        ValueError, match=f"{path.name} has format {storage_file.FORMAT + 1} .*expected {storage_file.FORMAT}.*update ntkgp"
    ):
        ntkgp.load(path, case.module())


@each_method
def test_missing_and_misshapen_parts(method: str, path: Path):
    """Of files that are whole, but were not written by this library."""
    net, x = linear(2), torch.randn(5, 2, generator=seeded(), dtype=torch.float64)
    whole = ntkgp.fit(net, x, x, noise_var=0.1, method=METHODS[method], generator=seeded()).state()

    def refused(state: State, name: str) -> None:
        storage_file.write(path, method, state)
        with pytest.raises(ValueError, match=f"cannot load .*{path.name}: .*'{name}'"):
            ntkgp.load(path, net)

    for name in whole.tensors:
        state = State(dict(whole.tensors), dict(whole.facts))
        tensor = state.tensors.pop(name)
        refused(state, name)
        state.tensors[name] = torch.cat([tensor, tensor[:1]]) if name != "losses" else tensor[:, 1:]
        refused(state, name)
    for name in whole.facts:
        if name != "layers":  # only explains
            state = State(dict(whole.tensors), dict(whole.facts))
            state.facts.pop(name)
            refused(state, name)


def test_wrong_names_in_facts(path: Path):
    case = by_name("paper mlp")
    whole = fitted(case).state()
    for name, wrong in {
        "user_dtype": "int64",
        "prior_mean": "other",
        "prior_std": {},
        "outputs": 2,
        "points": 2.5,
        "whole": None,
    }.items():
        state = State(dict(whole.tensors), dict(whole.facts))
        state.facts[name] = wrong
        storage_file.write(path, "exact", state)
        with pytest.raises(ValueError, match=f"cannot load .*{path.name}"):
            ntkgp.load(path, case.module())
    state = fitted(case, "trained").state()
    state.facts["estimate"] = "none"
    storage_file.write(path, "trained", state)
    with pytest.raises(ValueError, match="'estimate' must be one of"):
        ntkgp.load(path, case.module())
