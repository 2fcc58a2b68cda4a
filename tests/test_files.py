"""A posterior comes back from its file bit for bit, or not at all."""

import errno
import gc
import json
import os
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import modules
import pytest
import torch
from problems import Case, by_name, every
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from unchanged import unchanged

import ntkgp
from ntkgp import archive
from ntkgp.archive import State
from ntkgp.covariance import CovarianceEstimate
from ntkgp.exact import ExactPosterior
from ntkgp.lowrank import LowRankPosterior
from ntkgp.tangent import tangent as tangent_module

METHODS = {
    "exact": ntkgp.Exact(),
    "low rank": ntkgp.LowRank(rank=3, tail=2),
    "trained": ntkgp.TrainedNetworks(rank=2, tail=1, trainer=ntkgp.AcceleratedGD(tol=0.5)),
}
each_method = pytest.mark.parametrize("method", METHODS)
CHOSEN = [by_name(name) for name in (
    "noise per point, two outputs", "one output as a column", "float32, two outputs", "weight used directly",
    "batch norm in eval mode", "prior variance per layer", "network as prior mean", "function as prior mean", "tied embedding",
)]  # fmt: skip

# The shape checker of these tests draws random numbers of its own; and it is slow with functions inside of functions.
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "posterior.safetensors"


def linear(features: int) -> nn.Module:
    """The smallest network."""
    module = nn.utils.skip_init(nn.Linear, features, features, dtype=torch.float64)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.linspace(-1, 1, p.numel()).view_as(p))
    return module


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fitted(case: Case, method: str = "exact") -> ntkgp.Posterior:
    return case.fit(METHODS[method], generator=seeded())


def function_of(case: Case) -> Callable[[Tensor], Tensor] | None:
    """What has to be passed again."""
    return None if case.prior_mean is ntkgp.network_mean else case.prior_mean


def answers(posterior: ntkgp.Posterior, x: Tensor, draw: bool = True) -> list[Tensor]:
    p = posterior.predict(x)
    values = [getattr(p, f.name) for f in fields(p)]
    samples = [posterior.sample(3, generator=seeded(1))(x)] if draw else []
    return [value for value in values if value is not None] + [posterior.covariance(x), *samples]


def assert_same_bits(one: ntkgp.Posterior, other: ntkgp.Posterior, x: Tensor, draw: bool = True) -> None:
    assert type(one) is type(other)
    for a, b in zip(answers(one, x, draw), answers(other, x, draw), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def round_trip(posterior: ntkgp.Posterior, case: Case, path: Path, draw: bool = True) -> ntkgp.Posterior:
    """Loaded, with the same answers, and saved again as the same bytes."""
    posterior.save(path)
    loaded = ntkgp.load(path, case.module(), prior_mean=function_of(case))
    assert_same_bits(posterior, loaded, case.query, draw)
    again = path.with_name("again.safetensors")
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()
    return loaded


@every(CHOSEN)
@each_method
def test_posteriors_come_back(case: Case, method: str, path: Path):
    round_trip(fitted(case, method), case, path)


@each_method
def test_chosen_parameters(method: str, path: Path):
    case = by_name("two outputs")
    posterior = case.fit(METHODS[method], generator=seeded(), parameters=ntkgp.last_layer(case.module()))
    loaded = round_trip(posterior, case, path)
    assert 0 < len(loaded.state().facts["prior_std"]) < len(list(case.module().parameters()))


@pytest.mark.parametrize("method", [
    ntkgp.Exact(dtype=torch.float32),
    ntkgp.LowRank(rank=3, dtype=torch.float64, solver=ntkgp.CGLS(tol=1e-3)),
    ntkgp.LowRank(rtol=0.5),
    ntkgp.TrainedNetworks(rank=2, trainer=ntkgp.Adam(lr=1.0, patience=1), covariance=ntkgp.PaperCovariance()),
], ids=["exact in float32", "low rank in float64", "low rank by rtol", "the paper's training"])  # fmt: skip
@pytest.mark.parametrize("name", ["float32"])
def test_options_come_back(method: ntkgp.Exact | ntkgp.LowRank | ntkgp.TrainedNetworks, name: str, path: Path):
    case = by_name(name)
    posterior = case.fit(method, generator=seeded())
    loaded = round_trip(posterior, case, path)
    if isinstance(posterior, LowRankPosterior):
        assert isinstance(loaded, LowRankPosterior)
        for what in ("solver", "seconds", "side", "bracket_width"):
            assert getattr(loaded, what) == getattr(posterior, what)


def test_transposed_tensors_come_back_transposed(path: Path):
    """Products with a transposed matrix round in another way, which shows from some size on."""
    x = torch.randn(200, 3, generator=seeded())
    net, query = ntkgp.mlp(3, width=64, generator=seeded()), torch.randn(70, 3, generator=seeded(1))
    posterior = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1)
    posterior.save(path)
    assert_same_bits(posterior, ntkgp.load(path, net), query)
    state = State.of(
        a=torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1), b=torch.arange(9.0).view(3, 3)[:, :1], c=torch.ones(3, 0)
    )
    archive.write(path, "any", state)
    _, found = archive.read(path, torch.device("cpu"))
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in state.tensors.items())
    assert found.tensors["a"].stride() == state.tensors["a"].stride()


def test_tensors_that_share_memory(path: Path):
    a = torch.arange(6.0)
    archive.write(path, "any", State.of(a=a, b=a.view(2, 3), c=a[:2]))
    assert torch.equal(archive.read(path, torch.device("cpu"))[1].tensors["b"], a.view(2, 3))


def test_networks_trained_elsewhere(path: Path):
    case = by_name("two outputs")
    plan = ntkgp.plan_training(case.module(), case.x, case.y, noise_var=case.noise_var, rank=2)
    copies = [case.module() for _ in plan.targets]
    with torch.no_grad():
        for k, copy in enumerate(copies):
            next(copy.parameters()).add_(0.01 * k)
    round_trip(plan.posterior(copies), case, path)


def test_batches_are_left_out(path: Path):
    case = by_name("two outputs")
    loader = DataLoader(TensorDataset(case.x, case.y), batch_size=5)
    posterior = ntkgp.fit(case.module(), loader, noise_var=case.noise_var, method=METHODS["low rank"], generator=seeded())
    loaded = round_trip(posterior, case, path, draw=False)
    with safe_open(path, framework="pt") as file:
        assert file.get_tensor("x").shape == (2, 2)
    with pytest.raises(ValueError, match="given as batches, which files leave out; fit again"):
        loaded.sample(1)


def test_the_file_is_plain(path: Path):
    posterior = fitted(by_name("float32"))
    posterior.save(path)
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["ntkgp"])
        assert {"x", "residual", "noise_std", "factor", "alpha"} < set(file.keys())
    assert about["format"] == archive.FORMAT
    assert about["kind"] == "exact"
    assert about["versions"] == {"ntkgp": ntkgp.__version__, "torch": torch.__version__}
    assert about["facts"]["user_dtype"] == "float32"
    assert about["facts"]["vector_output"] is True
    assert "NaN" not in json.dumps(about)


@each_method
def test_saving_twice_gives_the_same_bytes(method: str, path: Path):
    posterior = fitted(by_name("paper mlp"), method)
    written = []
    for _ in range(2):
        posterior.save(path)
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert os.listdir(path.parent) == [path.name]


@each_method
def test_saving_and_loading_change_nothing(method: str, path: Path):
    case = by_name("batch norm in eval mode")
    posterior, module = fitted(case, method), case.module()
    before = answers(posterior, case.query)
    with unchanged(module):
        posterior.save(path)
        loaded = ntkgp.load(path, module)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.add_(1)
    path.write_bytes(b"")
    for one in (posterior, loaded):
        assert all(torch.equal(a, b) for a, b in zip(before, answers(one, case.query), strict=True))


def test_mode_and_frozen_weights_do_not_matter(path: Path):
    """What is loaded is in the mode that was fitted, whatever the module is in."""
    case = by_name("batch norm in eval mode")
    posterior, module = fitted(case), case.module().train().requires_grad_(False)
    posterior.save(path)
    assert_same_bits(posterior, ntkgp.load(path, module), case.query)
    assert module.training


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
    "wider": ("standard parametrisation", lambda m: modules.standard(2).double(), "'4.weight' .* has shape .* fitted one"),
    "less deep": ("standard parametrisation", lambda m: nn.Sequential(*list(m)[:3]), "has no '4.weight'"),
    "deeper": ("standard parametrisation", lambda m: nn.Sequential(*m, linear(1)), "has '5.weight', which the fitted"),
    "another dtype": ("standard parametrisation", lambda m: m.float(), "'0.weight' .*float32, .*use module.to.torch.float64"),
    "wider dtype": ("float32", lambda m: m.double(), "float64, that of the fitted one was torch.float32"),
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


def test_what_is_no_module_is_refused(path: Path):
    fitted(by_name("paper mlp")).save(path)
    with pytest.raises(TypeError, match=r"must be the torch.nn.Module that was fitted, got str"):
        ntkgp.load(path, "net")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no parameters"):
        ntkgp.load(path, nn.Tanh())


def test_prior_means(path: Path):
    case = by_name("function as prior mean")
    fitted(case).save(path)
    for none in (None, ntkgp.network_mean):
        with pytest.raises(ValueError, match="pass it again as prior_mean="):
            ntkgp.load(path, case.module(), prior_mean=none)
    with pytest.raises(ValueError, match="prior_mean is not the function of the fit"):
        ntkgp.load(path, case.module(), prior_mean=lambda x: 1.001 * x.square().sum(dim=1))
    for name, word in {"paper mlp": "zero", "network as prior mean": "network"}.items():
        fitted(by_name(name)).save(path)
        with pytest.raises(ValueError, match=f"the prior mean is in the file .{word}.; leave prior_mean out"):
            ntkgp.load(path, case.module(), prior_mean=ntkgp.network_mean)


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
        archive.write(path, "any", State.of(a=torch.zeros(1), text="x" * length))
        good = path.read_bytes()
        end = 8 + int.from_bytes(good[:8], "little")
        padded = end - len(good[:end].rstrip(b" "))
        for place in range(end - padded, end):
            path.write_bytes(good[:place] + b"\n" + good[place + 1 :])
            with pytest.raises(ValueError, match="damaged"):
                archive.read(path, torch.device("cpu"))


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
        with pytest.raises(ValueError, match=rf"{path.name} has no header of ntkgp: .* not written by posterior.save"):
            ntkgp.load(path, net)
    for text in ("[]", "3", "{"):
        save_file({"a": torch.zeros(2)}, path, metadata={"ntkgp": text})
        with pytest.raises(ValueError, match=rf"{path.name} is damaged: its header is not"):
            ntkgp.load(path, net)
    torch.save({"a": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=rf"{path.name} is damaged, or no safetensors file"):
        ntkgp.load(path, net)
    for missing in (path.with_name("nothing"), path.parent):
        with pytest.raises(FileNotFoundError, match="there is no file"):
            ntkgp.load(missing, net)


def test_files_of_the_future(path: Path, monkeypatch: pytest.MonkeyPatch):
    case = by_name("paper mlp")
    posterior = fitted(case)
    archive.write(path, "a new kind", posterior.state())
    with pytest.raises(ValueError, match=f"{path.name} holds a posterior of kind 'a new kind'.*update ntkgp"):
        ntkgp.load(path, case.module())
    monkeypatch.setattr(archive, "FORMAT", archive.FORMAT + 1)
    posterior.save(path)
    monkeypatch.undo()
    with pytest.raises(
        ValueError, match=f"{path.name} has format {archive.FORMAT + 1} .*expected {archive.FORMAT}.*update ntkgp"
    ):
        ntkgp.load(path, case.module())


@each_method
def test_missing_and_misshapen_parts(method: str, path: Path):
    """Of files that are whole, but were not written by this library."""
    net, x = linear(2), torch.randn(5, 2, generator=seeded(), dtype=torch.float64)
    whole = ntkgp.fit(net, x, x, noise_var=0.1, method=METHODS[method], generator=seeded()).state()

    def refused(state: State, name: str) -> None:
        archive.write(path, method, state)
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
        archive.write(path, "exact", state)
        with pytest.raises(ValueError, match=f"cannot load .*{path.name}"):
            ntkgp.load(path, case.module())
    state = fitted(case, "trained").state()
    state.facts["estimate"] = "none"
    archive.write(path, "trained", state)
    with pytest.raises(ValueError, match="'estimate' must be one of"):
        ntkgp.load(path, case.module())


@pytest.mark.parametrize("method", ["low rank", "trained"])
def test_parameters_in_another_order(method: str, path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another version may know factors of other layers, and with them order the weights differently."""
    case = by_name("standard parametrisation")
    posterior = fitted(case, method)
    posterior.save(path)
    found = tangent_module._wrong_factors
    monkeypatch.setattr(tangent_module, "_wrong_factors", lambda *args: found(*args) | {"0.weight"})
    loaded = ntkgp.load(path, case.module())
    assert list(loaded.state().facts["prior_std"]) != list(posterior.state().facts["prior_std"])
    for a, b in zip(answers(posterior, case.query, draw=False), answers(loaded, case.query, draw=False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_an_estimate_of_ones_own_cannot_be_saved(path: Path):
    class Own(CovarianceEstimate):
        head_weights = ntkgp.TightCovariance.head_weights  # pyright: ignore[reportAssignmentType]
        tail_targets = ntkgp.TightCovariance.tail_targets  # pyright: ignore[reportAssignmentType]

    posterior = by_name("paper mlp").fit(ntkgp.TrainedNetworks(rank=1, trainer=ntkgp.AcceleratedGD(tol=0.5), covariance=Own()))
    with pytest.raises(ValueError, match="only TightCovariance and PaperCovariance can be saved, got Own"):
        posterior.save(path)
    assert not path.exists()


def test_a_solver_of_ones_own_cannot_be_saved(path: Path):
    class Own(ntkgp.CGLS):
        pass

    with pytest.raises(ValueError, match="only CGLS can be saved as solver, got Own"):
        by_name("paper mlp").fit(ntkgp.LowRank(rank=2, solver=Own())).save(path)


def failing(error: Exception) -> Callable[..., None]:
    def fail(*args: object, **options: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(("owner", "name", "error", "kind"), [
    (Path, "touch", PermissionError(errno.EACCES, "Permission denied"), PermissionError),
    (archive, "save_file", SafetensorError("No space left on device"), OSError),
    (archive, "_sign", OSError(errno.ENOSPC, "No space left on device"), OSError),
    (os, "replace", PermissionError(errno.EPERM, "Operation not permitted"), PermissionError),
])  # fmt: skip
def test_a_failed_write_leaves_the_old_file(
    owner: object, name: str, error: Exception, kind: type[Exception], path: Path, monkeypatch: pytest.MonkeyPatch
):
    case = by_name("paper mlp")
    fitted(case).save(path)
    before = path.read_bytes()
    monkeypatch.setattr(owner, name, failing(error))
    with pytest.raises(kind, match=f"cannot write .*{path.name}: "):
        fitted(case, "low rank").save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_an_interrupted_write_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archive, "_sign", failing(KeyboardInterrupt()))  # pyright: ignore[reportArgumentType]
    with pytest.raises(KeyboardInterrupt):
        fitted(by_name("paper mlp")).save(path)
    assert os.listdir(path.parent) == []


def test_where_nothing_can_be_written(path: Path):
    posterior = fitted(by_name("paper mlp"))
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*; create it first"):
        posterior.save(path.parent / "nowhere" / "p.safetensors")
    with pytest.raises(ValueError, match="must be a plain file"):
        posterior.save(path.parent)
    path.parent.chmod(0o500)
    try:
        if not os.access(path.parent, os.W_OK):  # the superuser may write anywhere
            with pytest.raises(PermissionError, match=f"cannot write .*{path.name}"):
                posterior.save(path)
    finally:
        path.parent.chmod(0o700)


def test_links_are_not_written_through(path: Path):
    posterior, link, victim = fitted(by_name("paper mlp")), path.with_name("link"), path.with_name("victim")
    victim.write_text("precious")
    for target in (victim, path.with_name("nothing")):
        link.symlink_to(target)
        with pytest.raises(ValueError, match="got a link"):
            posterior.save(link)
        link.unlink()
    assert victim.read_text() == "precious"
    posterior.save(path)
    link.symlink_to(path)
    ntkgp.load(link, by_name("paper mlp").module())


def test_rows_that_came_later_lie_as_they_did(path: Path):
    """With another distance between rows, products round in another way: the bits would not be the same."""
    case = by_name("paper mlp")
    posterior = fitted(case)
    for k in range(3):
        posterior = posterior.update(case.x[:5] + k, case.y[:5])
    posterior.save(path)
    loaded = ntkgp.load(path, case.module())
    assert isinstance(posterior, ExactPosterior)
    assert isinstance(loaded, ExactPosterior)
    assert [t.stride() for t in loaded.cholesky.rows] == [t.stride() for t in posterior.cholesky.rows]
    assert loaded.cholesky.room.size == 16
    assert_same_bits(posterior, loaded, case.query)
    assert_same_bits(posterior.update(case.x[:2], case.y[:2]), loaded.update(case.x[:2], case.y[:2]), case.query)


def test_permissions_stay(path: Path):
    posterior = fitted(by_name("paper mlp"))
    path.touch(mode=0o600)
    posterior.save(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_permissions_are_the_usual_ones(path: Path):
    """safetensors makes files that only their owner may read, whatever the umask says."""
    other = path.with_name("other")
    other.touch()
    fitted(by_name("paper mlp")).save(path)
    assert path.stat().st_mode == other.stat().st_mode


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_method
def test_from_one_device_to_another(method: str, path: Path):
    case = by_name("two outputs")
    net, x, y, query = case.module().cuda(), case.x.cuda(), case.y.cuda(), case.query.cuda()
    # Draws are solved for again where they are made: to a tolerance that leaves nothing to compare but rounding.
    chosen = ntkgp.LowRank(rank=3, tail=2, solver=ntkgp.CGLS(tol=1e-11)) if method == "low rank" else METHODS[method]
    posterior = ntkgp.fit(net, x, y, noise_var=0.1, method=chosen, generator=seeded())
    posterior.save(path)
    assert_same_bits(posterior, ntkgp.load(path, net), query)
    moved = ntkgp.load(path, case.module())
    for a, b in zip(answers(posterior, query), answers(moved, case.query), strict=True):
        assert b.device.type == "cpu"
        torch.testing.assert_close(a.cpu(), b, rtol=1e-6, atol=1e-9)


def test_noise_given_as_a_tensor_is_copied():
    """What the user does to it later must not reach the posterior."""
    case, noise = by_name("two outputs"), torch.full((1, 2), 0.1, dtype=torch.float64)
    posterior = ntkgp.fit(case.module(), case.x, case.y, noise_var=noise)
    noise.fill_(5.0)
    found = posterior.predict(case.query).noise_var
    assert found is not None
    assert bool((found == 0.1).all())


def test_every_dtype_comes_back(path: Path):
    """bfloat16, too, which NumPy does not know."""
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in dtypes}
    tensors |= {"a number": torch.tensor(2.5), "nothing": torch.zeros(0, 3)}
    archive.write(path, "some", archive.State(tensors, {}))
    _, state = archive.read(path, torch.device("cpu"))
    assert state.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert state.tensors[name].dtype == tensor.dtype
        assert torch.equal(state.tensors[name], tensor)


def test_reading_leaves_no_memory_behind(path: Path):
    """safetensors keeps some 60 bytes of every tensor that it makes for torch."""
    archive.write(path, "some", archive.State({f"{k}": torch.zeros(300 + k, 2) for k in range(20)}, {}))

    def read(times: int) -> int:
        for _ in range(times):
            archive.read(path, torch.device("cpu"))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = read(20)
        assert (read(100) - before) / (100 * 20) < 20
    finally:
        tracemalloc.stop()
